"""Tests of the tokens of an axis and their words."""

from typing import Any

import pytest

from attnkit.analysis.capture import capture
from attnkit.analysis.inputs import tokens_of
from attnkit.runs import Run


class Vocabulary:
    """A vocabulary of given pieces."""

    def __init__(self, *pieces: str) -> None:
        self.all = ("<pad>", "<unk>", "<s>", "</s>", *pieces)

    def pieces(self, ids: Any) -> list[str]:
        return [self.all[i] for i in ids]


def words(ids: list[int], *pieces: str, special: tuple[str, ...] = ()) -> list[int | None]:
    vocabulary: Any = Vocabulary(*pieces)
    return [token.word for token in tokens_of([(vocabulary, ids)], special)]


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("The zebra ran.", "'zebra'"),
        ("A quantum highway", "'quantum'"),
        ("The poor woman stole a zebra.", ""),
        ("The king laughs.", ""),
    ],
)
def test_unknown_words_have_a_note(text: str, unknown: str) -> None:
    note = capture(Run.open("demo"), text, target="Ein").facts.get("note", "")
    assert ("are not in the vocabulary" in note, unknown in note) == (bool(unknown), True)


def test_space_mark_begins_a_word() -> None:
    assert words([4, 5, 4, 4, 5, 5], "\u2581a", "b") == [0, 0, 1, 2, 2, 2]


def test_piece_after_a_special_token_begins_a_word() -> None:
    assert words([2, 5, 4, 3, 5, 5], "\u2581a", "b") == [None, 0, 1, None, 2, 2]
    assert words([4, 6, 5, 4], "\u2581a", "b", "<sep>", special=("<sep>",)) == [0, None, 1, 2]


def test_words_are_numbered_over_all_parts() -> None:
    first: Any = Vocabulary("\u2581a")
    second: Any = Vocabulary("b", "\u2581c")
    tokens = tokens_of([(first, [4, 4, 3]), (second, [2, 4, 5])], ())
    assert [token.text for token in tokens] == ["\u2581a", "\u2581a", "</s>", "<s>", "b", "\u2581c"]
    assert [token.word for token in tokens] == [0, 1, None, None, 2, 3]


def test_unknown_pieces_belong_to_their_word_and_padding_to_none() -> None:
    assert words([4, 1, 0, 1], "\u2581") == [0, 0, None, 1]
