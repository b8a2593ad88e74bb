"""Tests of the note on texts unlike those of the training."""

from collections import Counter

import pytest

from attnkit.data.rare_words import rare_words, unlike_note
from attnkit.runs import Run


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The zebra ran.", "zebra"),
        ("A Quantum highway", "Quantum"),  # whose Q has no piece
        ("The poor woman stole a zebra.", None),
        ("The king laughs.", None),
        ("", None),
    ],
)
def test_rare_words_keep_their_spelling(text: str, word: str | None) -> None:
    words = rare_words(Run.open("demo").tokenizer().source, [text])
    assert words == Counter([word] if word else [])


def test_note_counts_lines() -> None:
    words = rare_words(Run.open("demo").tokenizer().source, ["zebra", "The king laughs.", "zebra"])
    assert unlike_note(words, 3).startswith("in 2 of 3 lines, at least half of the words, such as 'z")
    assert unlike_note(Counter()) == ""
