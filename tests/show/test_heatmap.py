"""Heatmaps on terminals of any width and with any colours."""

import io
import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from attnkit.maps import Layer, Maps, Token
from attnkit.show.heatmap import WIDES, Heatmap
from attnkit.show.scale import SCALES
from attnkit.show.view import View, difference, view

STYLE = re.compile(r"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
COLOURS = ("truecolor", "256", "standard", None)


class Ascii(Console):
    """A console whose stream can write nothing but ASCII."""

    encoding = "ascii"


def drawn(
    thing: RenderableType, width: int, colour: str | None = None, ascii_only: bool = False
) -> str:
    """What a console of this width writes."""
    out = io.StringIO()
    kind = Ascii if ascii_only else Console
    kind(
        file=out, width=width, force_terminal=True, color_system=colour, legacy_windows=False,
        markup=False, emoji=False, highlight=False, _environ={},
    ).print(thing)  # fmt: skip
    return out.getvalue()


def tokens(text: str) -> tuple[Token, ...]:
    return tuple(Token(piece, at, at) for at, piece in enumerate(text.split()))


def plain_view(queries: str, keys: str, matrix: object, **options: object) -> View:
    array = np.array(matrix, np.float32)
    return View(array, tokens(queries), tokens(keys), "cross attention", **options)


SMALL = plain_view("\u2581ein Hund .", "\u2581a dog !", [[1, 0, 0], [0, 0.5, 0.5], [0, 0.2, 0.8]])


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
        "0        ░░░░░░▒▒▒▒▒▒▓▓▓▓▓▓███████ 1",
        CAPTION,
    ]


def test_ascii_consoles_get_ascii() -> None:
    found = drawn(Heatmap(SMALL), 50, ascii_only=True)
    assert found.isascii()
    assert found.splitlines()[4:8] == [
        "_ein @@    ",
        "Hund   ++++",
        "   .   ::%%",
        "0     ...:::---===+++***###%%%@@@@ 1",
    ]


def test_digits_are_hundredths_and_exactly_none_is_a_point() -> None:
    assert drawn(Heatmap(SMALL, plain=True), 60, "truecolor").splitlines() == [
        "cross attention",
        "weights in hundredths; rows: queries, columns: keys",
        "      ▁a dog  !",
        "▁ein 100   .  .",
        "Hund   .  50 50",
        ".      .  20 80",
    ]


def test_colours_are_those_of_the_map() -> None:
    lines = drawn(Heatmap(SMALL), 50, "truecolor").splitlines()
    assert lines[4] == "▁ein \x1b[48;2;252;232;56m  \x1b[0m\x1b[48;2;0;35;79m    \x1b[0m"
    lines = drawn(Heatmap(SMALL), 50, "256").splitlines()
    assert re.sub(r"48;5;\d+", "N", lines[4]) == "▁ein \x1b[Nm  \x1b[0m\x1b[Nm    \x1b[0m"


def test_no_color_wins_over_a_coloured_terminal() -> None:
    out = io.StringIO()
    console = Console(
        file=out, width=50, force_terminal=True, color_system="truecolor", no_color=True,
        legacy_windows=False,
    )  # fmt: skip
    console.print(Heatmap(SMALL))
    assert "▒▒▒▒" in out.getvalue()


def test_long_maps_are_half_blocks_with_numbered_tokens() -> None:
    matrix = np.eye(70, dtype=np.float32)
    names = tuple(Token(f"t{at}", at, at) for at in range(70))
    lines = STYLE.sub("", drawn(Heatmap(View(matrix, names, names, "map")), 80, "256")).split("\n")
    assert lines[1] == " " * 7 + "".join(f"{at:<10}" for at in range(0, 70, 10)).rstrip()
    assert lines[2] == " 0  t0 " + "▀" * 70
    assert lines[36] == "68 t68 " + "▀" * 70
    assert "a line is 2 queries, named by the first" in " ".join(" ".join(lines).split())


def test_maps_wider_than_the_screen_say_what_a_cell_is() -> None:
    matrix = np.eye(8, 400, dtype=np.float32)
    names = tuple(Token("x", at, at) for at in range(400))
    found = drawn(Heatmap(View(matrix, names[:8], names, "map")), 80)
    assert "a cell is the highest of 1 x 6 (queries x keys)" in " ".join(found.split())
    found = drawn(Heatmap(View(matrix, names[:8], names, "map"), wide="page"), 80)
    assert "keys 0 to 66 of 400" in found


def test_titles_say_where_a_map_comes_from() -> None:
    axis = tokens("a b")
    weights = np.stack([np.eye(2), np.ones((2, 2)) / 2])[None].astype(np.float32)
    layer = Layer(3, "performer", exact=False, distance=(0.25, 0.125))
    maps = Maps("encoder", weights, (layer,), (0, 5), axis, axis)
    one = view(maps, 3, 5)
    assert one.title == "encoder self-attention, layer 3, head 5: performer (effective)"
    assert one.notes[-1] == "mean total variation from exact softmax attention: 0.125 (0 to 1)"
    mean = view(maps)
    assert mean.title == (
        "encoder self-attention, layer 3, mean of heads 0, 5: performer (effective)"
    )
    assert mean.matrix.tolist() == [[0.75, 0.25], [0.25, 0.75]]


def test_static_maps_say_so() -> None:
    axis = tokens("a b")
    weights = np.ones((1, 1, 2, 2), np.float32) / 2
    layer = Layer(0, "synthesizer-random", static=True)
    found = drawn(Heatmap(view(Maps("encoder", weights, (layer,), (0,), axis, axis))), 80)
    assert "static: the same for every text of this length" in found


def test_differences_need_equal_axes() -> None:
    assert difference(SMALL, plain_view("x y z", "a b c", np.zeros((3, 3)))) is None
    both = difference(SMALL, SMALL)
    assert both is not None
    assert both.signed
    assert not both.matrix.any()


WIDTHS = st.sampled_from((20, 40, 80, 200)) | st.integers(8, 120)
PIECES = st.text(max_size=14) | st.sampled_from(
    ("", "\x1b[31m", "\u202eabc", "\ufeff", "\u6f22\u5b57", "e\u0301", "\u0301", "\U0001f469\u200d"
     "\U0001f467", "[bold]", "</s>", "\t", "a\nb", "\r", "\u2028", "\U0001f1e9\U0001f1ea")
)  # fmt: skip


@st.composite
def views(draw: st.DrawFn) -> View:
    sizes = [draw(st.integers(0, 12) | st.integers(0, 150)) for _ in range(2)]
    few = draw(st.lists(PIECES, min_size=1, max_size=8))
    axes = [
        tuple(Token(few[at % len(few)], at, at, at == 3) for at in range(size)) for size in sizes
    ]
    seed = draw(st.integers(0, 99))
    reach = draw(st.sampled_from((1.0, 0.0, -3.0, 1e-9, 1e9, np.nan, np.inf)))
    with np.errstate(all="ignore"):
        matrix = np.random.default_rng(seed).normal(size=sizes).astype(np.float32) * reach
    title = draw(PIECES)
    return View(matrix.astype(np.float32), *axes, title, (title,), draw(st.booleans()))


@given(
    views(), WIDTHS, st.sampled_from(COLOURS), st.sampled_from(SCALES), st.sampled_from(WIDES),
    st.booleans(), st.booleans(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_no_line_is_wider_than_the_screen(
    shown: View,
    width: int,
    colour: str | None,
    scale: str,
    wide: str,
    plain: bool,
    ascii_only: bool,
) -> None:
    heatmap = Heatmap(shown, scale=scale, wide=wide, plain=plain)
    found = STYLE.sub("", drawn(heatmap, width, colour, ascii_only))
    assert not CONTROL.search(found)
    assert max(map(cell_len, found.split("\n"))) <= width
    assert not ascii_only or found.isascii()
