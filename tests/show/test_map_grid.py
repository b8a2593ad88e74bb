"""All heads at a glance."""

from typing import get_args

import numpy as np
from helpers.screens import COLOURS, CONTROL, PIECES, STYLE, WIDTHS, drawn, made
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from attnkit.analysis.maps import AttentionMaps, MapLayer, Token
from attnkit.show.colour import Scale
from attnkit.show.map_screens import MapGrid


def test_every_head_is_a_small_map_under_its_number() -> None:
    assert drawn(MapGrid(made("ein Hund .", "a dog !", 1, 2)), 80).splitlines() == [
        "cross attention, all heads: scaled-dot (exact)",
        "L0 H0  H1",
        "   ██   ██",
        "     █ █  ",
        "",
        "0        ░░░░░░▒▒▒▒▒▒▓▓▓▓▓▓███████ 1",
        "weight, linear; L layer, H head; rows: token read (queries), columns: source ",
        "(keys); a cell is the highest of 2 x 1 (queries x keys)",
    ]


def test_heads_that_do_not_fit_go_below() -> None:
    found = drawn(MapGrid(made("a b c d e f g h", "a b c d e f g h", 1, 12)), 40)
    heads = [line.split() for line in found.splitlines() if line.startswith("L0")]
    assert [name for line in heads for name in line[1:]] == [f"H{at}" for at in range(12)]
    assert len(heads) == 3


def test_one_colour_bar_is_for_all() -> None:
    """A head with weights of 0.5 is drawn darker than one with 1."""
    maps = made("a b", "a b", 1, 2)
    maps.weights[0, 1] /= 2
    found = drawn(MapGrid(maps), 80).splitlines()
    assert found[2] == "   █   ▒"


@given(
    st.lists(st.integers(0, 6) | st.integers(0, 70), min_size=2, max_size=2),
    st.integers(1, 3),
    st.integers(1, 13),
    st.lists(PIECES, min_size=1, max_size=4),
    WIDTHS,
    st.sampled_from(COLOURS),
    st.sampled_from(get_args(Scale)),
)
def test_no_line_is_wider_than_the_screen(
    sizes: list[int], layers: int, heads: int, pieces: list[str], width: int, colour: str | None, scale: str
) -> None:
    axes = [tuple(Token(pieces[at % len(pieces)], at, at) for at in range(n)) for n in sizes]
    weights = np.random.default_rng(1).normal(size=(layers, heads, *sizes)).astype(np.float32)
    known = tuple(MapLayer(at * 7, pieces[0], at > 0, at > 1) for at in range(layers))
    grid = MapGrid(AttentionMaps("cross", weights, known, tuple(range(heads)), *axes), scale=scale)
    found = STYLE.sub("", drawn(grid, width, colour))
    assert not CONTROL.search(found)
    assert max(map(cell_len, found.split("\n"))) <= width
