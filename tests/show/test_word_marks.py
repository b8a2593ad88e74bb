"""Tests of splitting text into words, and of marks of differences."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attnkit.show.word_marks import mark_differences, nearest_text, spans, words

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
    assert [word.strip() for word in words(text)] == expected


@given(TEXTS)
def test_words_lose_nothing_but_white_space(text: str) -> None:
    found = words(text)
    assert "".join(found).split() == text.split()
    assert all(word.strip() for word in found)


@given(TEXTS, TEXTS)
@example("<<", "<[<")
def test_unmarked_spans_are_in_both_texts(text: str, other: str) -> None:
    found = spans(text, other)
    # a space replaces a missing word, also inside a chunk
    assert "".join("".join(span for span, _ in found).split()) == "".join(text.split())
    rest = [*map(str.strip, words(other))]
    for span, differs in found:
        if not differs:
            common = [*map(str.strip, words(span))]
            assert any(rest[at : at + len(common)] == common for at in range(len(rest) - len(common) + 1))
    same = [*map(str.strip, words(text))] == rest
    assert same is not any(differs for _, differs in found)


def test_marks_of_different_and_missing_words() -> None:
    assert mark_differences("a red dog runs", ["a blue dog now runs"]) == "a [red] dog [_] runs"
    assert mark_differences("", ["a dog"]) == "[_]"
    assert mark_differences("same here.", ["same here.", "same"]) == "same here."
    assert mark_differences("a (dog)!", ["a (cat)!"]) == "a ([dog])!"


def test_nearest_text() -> None:
    assert nearest_text("two cats", ["a dog", "the two cats", "cats two"]) == "the two cats"
    assert nearest_text("nothing", ["a", "b"]) == "a"
