"""Several captures side by side, and what they differ in."""

from dataclasses import replace

import pytest
from helpers.screens import COLOURS, CONTROL, PIECES, STYLE, WIDTHS, capture, drawn, made
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from attnkit.analysis.maps import Capture
from attnkit.errors import UsageError
from attnkit.show.map_screens import MapComparison

ONE = capture(made("ein Hund .", "a dog !"), "vanilla")
OTHER = capture(made("ein Hund .", "a dog !", word="dot"), "dense")
ELSE = capture(made("ein Tier .", "a dog !"), "random", "ein Tier .")


def one_head(*captures: Capture, layer: int, head: int) -> list[Capture]:
    """The captures with one layer and head alone."""
    return [
        replace(one, maps={kind: maps.choose([layer], [head]) for kind, maps in one.maps.items()}) for one in captures
    ]


def test_maps_stand_below_each_other_with_their_difference() -> None:
    text = drawn(MapComparison(one_head(ONE, OTHER, layer=1, head=0), "cross"), 50)
    lines = [line.strip() for line in text.splitlines()]
    assert lines.index("vanilla") < lines.index("dense") < lines.index("dense minus vanilla")
    assert lines.count("output (greedy): ein Hund .") == 2


def test_other_tokens_have_no_difference() -> None:
    text = drawn(MapComparison(one_head(ONE, ELSE, layer=1, head=0), "cross"), 120)
    assert "no difference of random and vanilla: their queries are different tokens" in text
    assert "minus" not in text


def test_signs_show_differences_without_colours() -> None:
    other = capture(made("ein Hund .", "a dog !"), "shifted")
    other.maps["cross"].weights[:] = other.maps["cross"].weights[:, :, ::-1]
    lines = drawn(MapComparison(one_head(ONE, other, layer=0, head=0), "cross"), 40).splitlines()
    at = lines.index("shifted minus vanilla")
    assert lines[at + 4 : at + 7] == [" ein ==  ##", "Hund       ", "   . ##  =="]


def test_maps_share_one_colour_bar() -> None:
    half = capture(made("ein Hund .", "a dog !"), "half")
    half.maps["cross"].weights[:] /= 2
    lines = drawn(MapComparison(one_head(ONE, half, layer=0, head=0), "cross"), 90).splitlines()
    rows = [line for line in lines if line.startswith(" ein")]
    assert ["██" in rows[0], "▒▒" in rows[1]] == [True, True]


def test_a_kind_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="--kind encoder: vanilla has no encoder self-attention"):
        MapComparison([ONE, OTHER], "encoder")


@given(PIECES, st.integers(1, 3), st.integers(1, 30), WIDTHS, st.sampled_from(COLOURS))
def test_no_line_is_wider_than_the_screen(piece: str, count: int, size: int, width: int, colour: str | None) -> None:
    maps = made(" ".join("x" * size), " ".join("y" * (size + 3)))
    captures = [capture(maps, piece + str(at), piece) for at in range(count)]
    found = STYLE.sub("", drawn(MapComparison(captures, "cross"), width, colour))
    assert not CONTROL.search(found)
    assert max(map(cell_len, found.split("\n"))) <= width
