"""Words of any text, and which of them are marked as different."""

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
def test_spans_are_the_text_and_unmarked_ones_are_in_both(text: str, other: str) -> None:
    found = spans(text, other)
    # inside a chunk, too, a space stands where a word is missing
    assert "".join("".join(span for span, _ in found).split()) == "".join(text.split())
    rest = [*map(str.strip, words(other))]
    for span, differs in found:
        if not differs:
            common = [*map(str.strip, words(span))]
            assert any(rest[at : at + len(common)] == common for at in range(len(rest) - len(common) + 1))
    same = [*map(str.strip, words(text))] == rest
    assert same is not any(differs for _, differs in found)


def test_what_differs_and_what_is_missing() -> None:
    assert mark_differences("a red dog runs", ["a blue dog now runs"]) == "a [red] dog [_] runs"
    assert mark_differences("", ["a dog"]) == "[_]"
    assert mark_differences("same here.", ["same here.", "same"]) == "same here."
    assert mark_differences("a (dog)!", ["a (cat)!"]) == "a ([dog])!"


def test_the_nearest_of_several_texts() -> None:
    assert nearest_text("two cats", ["a dog", "the two cats", "cats two"]) == "the two cats"
    assert nearest_text("nothing", ["a", "b"]) == "a"
