"""Tests of labels of tokens: width on terminals, escaping, truncation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from attnkit.analysis.maps import Token
from attnkit.show.token_labels import aligned, clusters, cut, labels_of, upright, visible

# text, cells on a terminal, characters (grapheme clusters)
CLASSES = {
    "ascii": ("dog", 3, 3),
    "latin": ("Stra\u00dfe", 6, 6),
    "vocabulary": ("\u2581it", 3, 3),
    "han": ("\u6f22\u5b57", 4, 2),
    "hangul": ("\ud55c\uad6d", 4, 2),
    "jamo": ("\u1112\u1161\u11ab", 2, 1),
    "full width": ("\uff21\uff22", 4, 2),
    "half width": ("\uff71\uff72\uff99", 3, 3),
    "combining": ("e\u0301te\u0301", 3, 3),
    "joined emoji": ("\U0001f469\u200d\U0001f469\u200d\U0001f467", 2, 1),
    "skin color": ("\U0001f44d\U0001f3fd", 2, 1),
    "flag": ("\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", 4, 2),
    "emoji style": ("\u2764\ufe0f", 2, 1),
    "devanagari": ("\u0928\u092e\u0938\u094d\u0924\u0947", 4, 3),
    "thai": ("\u0e20\u0e32\u0e29\u0e32", 4, 4),
    "arabic": ("\u0633\u0644\u0627\u0645", 4, 4),
    "no space": ("a\u200bb", 8, 8),
    "lone mark": ("\u0301", 1, 1),
    "empty": ("", 2, 2),
}


@pytest.mark.parametrize(("text", "cells", "count"), CLASSES.values(), ids=CLASSES)
def test_width_and_number_of_characters(text: str, cells: int, count: int) -> None:
    shown = visible(text)
    assert cell_len(shown) == cells
    assert len(clusters(shown)) == count
    for width in range(1, 12):
        for left in (False, True):
            assert cell_len(aligned(shown, width, left=left)) == width
    assert aligned(shown, 10) == " " * (10 - cells) + shown


@given(st.text(max_size=20), st.integers(0, 20))
def test_labels_have_their_width_and_no_control_characters(text: str, width: int) -> None:
    shown = visible(text)
    line = aligned(shown, width)
    assert not {*line} & {*"\n\t\x1b"}
    assert cell_len(line) == width
    assert "".join(clusters(shown)) == shown


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("because", 7, "because"),
        ("because", 5, "beca\u2026"),
        ("because", 1, "\u2026"),
        ("because", 0, ""),
        ("\u6f22\u5b57\u5b57", 4, "\u6f22\u2026"),
        ("e\u0301te\u0301e", 3, "e\u0301t\u2026"),
        ("\U0001f469\u200d\U0001f467\U0001f467", 3, "\U0001f469\u200d\U0001f467\u2026"),
    ],
)
def test_long_labels_end_in_an_ellipsis(text: str, width: int, expected: str) -> None:
    assert cut(text, width) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb", r"a\tb"),
        ("a\nb", r"a\nb"),
        ("a b", "a\u2423b"),
        ("\u2581the", "\u2581the"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\u202e", r"\u202e"),
        ("\u00fc", "\u00fc"),
        ("[bold]", "[bold]"),
    ],
)
def test_invisible_characters_are_escaped(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_space_marks_are_left_out_where_all_tokens_are_words() -> None:
    end = Token("</s>", 3, None, True)
    words = [Token("\u2581the", 5, 0), Token("\u2581animal", 6, 1), end]
    assert labels_of(words) == ["the", "animal", "</s>"]
    pieces = [Token("\u2581the", 5, 0), Token("\u2581ani", 6, 1), Token("mal", 7, 1), end]
    assert labels_of(pieces) == ["\u2581the", "\u2581ani", "mal", "</s>"]


def test_vertical_labels_end_at_the_bottom() -> None:
    assert upright(["ab", "\u6f22", "c"], 2) == ["a     ", "b \u6f22c "]
