"""Tests of safe text and of suggestions for misspelt words."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.text import nearest, quoted, safe_text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b0m", "\\x9b0m"),
        ("\r\x7f\x00", "\\x0d\\x7f\\x00"),
        ("\u202eevil", "\\u202eevil"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("\u0378", "\\u0378"),
        ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),
        ("\ufeff", "\\ufeff"),
        *((text, text) for text in ("Grüße", "日本語", "می\u200cخواهم", "👩\u200d👩\u200d👧", "\u0600", "e\u0301")),
    ],
)
def test_only_hidden_characters_are_escaped(raw: str, shown: str) -> None:
    assert safe_text(raw) == shown


@given(st.text(st.characters()))
def test_safe_text_has_no_hidden_characters_and_can_be_encoded(text: str) -> None:
    shown = safe_text(text)
    shown.encode()
    assert not {unicodedata.category(c) for c in shown if c not in "\n\t"} & {"Cc", "Cs", "Cn", "Zl"}
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")
    assert safe_text(shown) == shown


def test_quoted_text_is_one_short_line() -> None:
    assert quoted("a\nb\tc") == "'a\\nb\\tc'"
    assert quoted("x" * 1000) == "'" + "x" * 36 + "..." + "x" * 9 + "'"


@pytest.mark.parametrize(
    ("word", "choices", "found"),
    [
        ("setps", ["steps", "seeds", "lr"], "steps"),
        ("BF16", ["fp16", "bf16"], "bf16"),
        ("scaled_dot", ["dot", "scaled-dot"], "scaled-dot"),
        ("zebra", ["steps", "lr"], None),
        ("", ["steps"], None),
        ("x" * 10_000, ["steps"], None),
        ("steps", [], None),
    ],
)
def test_nearest_returns_a_similar_word_or_none(word: str, choices: list[str], found: str | None) -> None:
    assert nearest(word, choices) == found
