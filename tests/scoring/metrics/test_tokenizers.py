"""Tests of words of any script against lists by hand, and of ASCII against rouge-score."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.tokenize import tokenize

from attnkit.scoring.metrics.tokenizers import unicode_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\u041a\u043e\u0442, 2024!", ["\u043a\u043e\u0442", "2024"]),
        ("B\u00e4r ba\u0308r \u00dcBER-all", ["b\u00e4r", "ba\u0308r", "\u00fcber", "all"]),
        ("\u039f \u03a3\u039a\u03a5\u039b\u039f\u03a3", ["\u03bf", "\u03c3\u03ba\u03c5\u03bb\u03bf\u03c2"]),
        ("\u0645\u0650\u0646\u060c \u0662\u0663", ["\u0645\u0650\u0646", "\u0662\u0663"]),  # Arabic, its digits
        ("\u0645\u06cc\u200c\u0634\u0648\u062f", ["\u0645\u06cc\u200c\u0634\u0648\u062f"]),  # Persian, one word
        ("\u0939\u093f\u0928\u094d\u0926\u0940", ["\u0939\u093f\u0928\u094d\u0926\u0940"]),  # Hindi, with marks
        ("\ud55c\uad6d\uc5b4 \ub9d0", ["\ud55c\uad6d\uc5b4", "\ub9d0"]),  # Korean has spaces
        ("\u6211\u7231GPT-4\u3002", ["\u6211", "\u7231", "gpt", "4"]),
        ("\u30b3\u30fc\u30d2\u30fc\u3092", ["\u30b3", "\u30fc", "\u30d2", "\u30fc", "\u3092"]),
        ("\u4eba\u3005\u3000\U00020000", ["\u4eba", "\u3005", "\U00020000"]),
        # Thai, marks stay
        (
            "\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48 \u0e52\u0e55",
            ["\u0e17\u0e35\u0e48", "\u0e19\u0e35\u0e48", "\u0e52\u0e55"],
        ),
        ("\u0ea5\u0eb2\u0ea7", ["\u0ea5", "\u0eb2", "\u0ea7"]),
        ("\u1781\u17d2\u1798\u17c2\u179a", ["\u1781\u17d2", "\u1798\u17c2", "\u179a"]),
        ("\u1019\u103c\u1014\u103a\u200b\u1019\u102c", ["\u1019\u103c", "\u1014\u103a", "\u1019\u102c"]),
        # Tibetan, by syllables
        ("\u0f56\u0f7c\u0f51\u0f0b\u0f61\u0f72\u0f42\u0f0d", ["\u0f56\u0f7c\u0f51", "\u0f61\u0f72\u0f42"]),
        ("a\u00a0b\u202fc\u3000d  e\tf", ["a", "b", "c", "d", "e", "f"]),
        ("don\u2019t snake_case", ["don", "t", "snake", "case"]),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert unicode_words(text) == words


@given(st.text(st.characters(max_codepoint=0x7F)))
def test_ascii_words_equal_those_of_rouge_score(text: str) -> None:
    assert unicode_words(text) == tokenize(text, None)
