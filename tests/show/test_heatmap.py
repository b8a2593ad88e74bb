"""Heatmaps on terminals of any width and with any colours."""

import re
from typing import get_args

import numpy as np
from helpers.screens import COLOURS, CONTROL, PIECES, STYLE, WIDTHS, drawn, tokens
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from attnkit.analysis.maps import AttentionMaps, MapLayer, Token
from attnkit.show.attention_matrix import AttentionMatrix, axes_difference, matrix_of
from attnkit.show.colour import Scale
from attnkit.show.heatmap import Heatmap


def plain_matrix(queries: str, keys: str, matrix: object, **options: object) -> AttentionMatrix:
    array = np.array(matrix, np.float32)
    return AttentionMatrix(array, tokens(queries), tokens(keys), "cross attention", **options)


SMALL = plain_matrix("\u2581ein Hund .", "\u2581a dog !", [[1, 0, 0], [0, 0.5, 0.5], [0, 0.2, 0.8]])


CAPTION = "weight, linear; rows: queries, columns: keys"


def test_a_small_map_is_squares_with_all_labels() -> None:
    assert drawn(Heatmap(SMALL), 50).splitlines() == [
        "cross attention",
        "       d",
        "     ▁ o",
        "     a g !",
        "▁ein ██    ",
        "Hund   ▒▒▒▒",
        "   .   ░░██",
        "",
        "0        ░░░░░░▒▒▒▒▒▒▓▓▓▓▓▓███████ 1",
        CAPTION,
    ]


def test_colours_are_those_of_the_map() -> None:
    lines = drawn(Heatmap(SMALL), 50, "truecolor").splitlines()
    assert lines[4] == "▁ein \x1b[48;2;252;232;56m  \x1b[0m\x1b[48;2;0;35;79m    \x1b[0m"
    lines = drawn(Heatmap(SMALL), 50, "256").splitlines()
    assert re.sub(r"48;5;\d+", "N", lines[4]) == "▁ein \x1b[Nm  \x1b[0m\x1b[Nm    \x1b[0m"


def test_long_maps_are_half_blocks_with_numbered_tokens() -> None:
    matrix = np.eye(70, dtype=np.float32)
    names = tuple(Token(f"t{at}", at, at) for at in range(70))
    lines = STYLE.sub("", drawn(Heatmap(AttentionMatrix(matrix, names, names, "map")), 80, "256")).split("\n")
    assert lines[1] == " " * 7 + "".join(f"{at:<10}" for at in range(0, 70, 10)).rstrip()
    assert lines[2] == "  0 t0 " + "▀" * 70
    assert lines[36] == "68 t68 " + "▀" * 70
    assert "a line is 2 queries, named by the first" in " ".join(" ".join(lines).split())


def test_maps_wider_than_the_screen_say_what_a_cell_is() -> None:
    matrix = np.eye(8, 400, dtype=np.float32)
    names = tuple(Token("x", at, at) for at in range(400))
    found = drawn(Heatmap(AttentionMatrix(matrix, names[:8], names, "map")), 80)
    assert "a cell is the highest of 1 x 6 (queries x keys)" in " ".join(found.split())


def test_columns_keep_their_numbers_where_the_first_is_hidden() -> None:
    names = tuple(Token(f"t{at}", at, at) for at in range(70))
    maps = AttentionMaps(
        "encoder", np.eye(70, dtype=np.float32)[None, None], (MapLayer(0, "dot"),), (0,), names, names
    ).without(first=True)
    for width in (80, 200):
        assert "first column hidden: t0" in drawn(Heatmap(matrix_of(maps)), width)
    lines = STYLE.sub("", drawn(Heatmap(matrix_of(maps)), 100, "256")).split("\n")
    assert lines[1].split()[:2] == ["1", "11"]


def test_titles_say_where_a_map_comes_from() -> None:
    axis = tokens("a b")
    weights = np.stack([np.eye(2), np.ones((2, 2)) / 2])[None].astype(np.float32)
    layer = MapLayer(3, "performer", exact=False, distance=(0.25, 0.125))
    maps = AttentionMaps("encoder", weights, (layer,), (0, 5), axis, axis)
    one = matrix_of(maps.choose([3], [5]))
    assert one.title == "encoder self-attention, layer 3, head 5: performer (effective)"
    assert one.notes[-1] == "half the L1 distance from exact softmax attention: mean 0.125"
    mean = matrix_of(maps)
    assert mean.title == ("encoder self-attention, layer 3, mean of heads 0, 5: performer (effective)")
    assert mean.weights.tolist() == [[0.75, 0.25], [0.25, 0.75]]


def test_differences_need_equal_axes() -> None:
    assert axes_difference(SMALL, plain_matrix("x y z", "a b c", np.zeros((3, 3)))) == (
        "their queries are different tokens"
    )
    both = SMALL.minus(SMALL)
    assert both.signed
    assert not both.weights.any()


@st.composite
def views(draw: st.DrawFn) -> AttentionMatrix:
    sizes = [draw(st.integers(0, 12) | st.integers(0, 150)) for _ in range(2)]
    few = draw(st.lists(PIECES, min_size=1, max_size=8))
    axes = [tuple(Token(few[at % len(few)], at, at, at == 3) for at in range(size)) for size in sizes]
    seed = draw(st.integers(0, 99))
    reach = draw(st.sampled_from((1.0, 0.0, -3.0, 1e-9, 1e9, np.nan, np.inf)))
    with np.errstate(all="ignore"):
        matrix = np.random.default_rng(seed).normal(size=sizes).astype(np.float32) * reach
    title = draw(PIECES)
    return AttentionMatrix(matrix.astype(np.float32), *axes, title, (title,), draw(st.booleans()))


@given(views(), WIDTHS, st.sampled_from(COLOURS), st.sampled_from(get_args(Scale)))
def test_no_line_is_wider_than_the_screen(shown: AttentionMatrix, width: int, colour: str | None, scale: str) -> None:
    heatmap = Heatmap(shown, scale=scale)
    found = STYLE.sub("", drawn(heatmap, width, colour))
    assert not CONTROL.search(found)
    assert max(map(cell_len, found.split("\n"))) <= width
