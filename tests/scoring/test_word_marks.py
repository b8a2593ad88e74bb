"""Words of any text, and which of them are marked as different."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.scoring.word_marks import Span, marked, nearest_text, words

TEXTS = st.text(st.sampled_from("ab .,\u05d0\u0301\u4e2d\u0e01[]<&\x1b\u202e\n\t")) | st.text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Ein (roter) Hund's Haus.", ["Ein", "(", "roter", ")", "Hund's", "Haus", "."]),
        ("\u6211\u5403 rice\u3002", ["\u6211", "\u5403", "rice", "\u3002"]),
        ("\u0e01\u0e34\u0e19", ["\u0e01\u0e34", "\u0e19"]),
        ("...", [".", ".", "."]),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert [word.text for word in words(text)] == expected


@given(TEXTS)
def test_words_lose_nothing_but_white_space(text: str) -> None:
    found = words(text)
    assert "".join(word.text for word in found) == "".join(text.split())
    assert sum(word.space for word in found) == len(text.split())
    assert all(word.text for word in found)


@given(TEXTS, TEXTS)
def test_spans_are_the_text_and_unmarked_ones_are_in_both(text: str, other: str) -> None:
    spans = marked(text, other)
    shown = "".join((" " if span.space and span.text else "") + span.text for span in spans)
    assert shown.split() == text.split()
    rest = [word.text for word in words(other)]
    for span in spans:
        if not span.differs:
            common = [word.text for word in words(span.text)]
            assert any(
                rest[at : at + len(common)] == common for at in range(len(rest) - len(common) + 1)
            )
    same = [word.text for word in words(text)] == [word.text for word in words(other)]
    assert same is not any(span.differs for span in spans)


def test_what_differs_and_what_is_missing() -> None:
    assert marked("a red dog runs", "a blue dog now runs") == [
        Span("a", True, False), Span("red", True, True), Span("dog", True, False),
        Span("", True, True), Span("runs", True, False),
    ]  # fmt: skip
    assert marked("", "a dog") == [Span("", True, True)]
    assert marked("same here.", "same here.") == [Span("same here.", True, False)]


def test_the_nearest_of_several_texts() -> None:
    assert nearest_text("two cats", ["a dog", "the two cats", "cats two"]) == "the two cats"
    assert nearest_text("nothing", ["a", "b"]) == "a"
