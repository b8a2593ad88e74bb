"""Words of any text, and which of them differ from another text."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache

import regex

from attnkit.scoring.metrics.tokenizers import UNSPACED

_PARTS = regex.compile(r"([\p{P}\p{S}]*)(.*?)([\p{P}\p{S}]*)\Z", regex.DOTALL)
"""Punctuation before and after a chunk, and what is between."""
_WORDS = regex.compile(rf"[{UNSPACED}]\p{{M}}*|[^{UNSPACED}]+")
"""Scripts that put no space between words: there each character is a word."""


def marked(text: str, references: Sequence[str]) -> str:
    """A text with what differs from the nearest reference in brackets; [_]: words are missing."""
    parts = (
        " " * span.startswith(" ") + f"[{span.strip() or '_'}]" if differs else span
        for span, differs in spans(text, nearest_text(text, references))
    )
    return "".join(parts).strip()


def spans(text: str, against: str) -> list[tuple[str, bool]]:
    """A text in parts, and which of them differ from another text (difflib, word by word).

    Where words of the other text are missing stands a space.
    """
    own = words(text)
    return [
        ("".join(own[start:end]) or " ", kind != "equal")
        for kind, _, _, start, end in _matcher(own, words(against)).get_opcodes()
    ]


def words(text: str) -> list[str]:
    """The words of a text, a space before them where there is white space or the beginning.

    Punctuation around them counts as words of its own.
    """
    return [part if place else f" {part}" for chunk in text.split() for place, part in enumerate(_parts(chunk))]


@lru_cache(1 << 16)
def _parts(chunk: str) -> tuple[str, ...]:
    """A chunk without spaces, cut at its outer punctuation and at unspaced characters."""
    before, inner, after = _PARTS.findall(chunk)[0]
    return (*before, *_WORDS.findall(inner), *after)


def nearest_text(text: str, others: Sequence[str]) -> str:
    """Which of some texts has the most words in common with this one; the first of equals."""
    if len(others) == 1:
        return others[0]
    own = words(text)
    return max(others, key=lambda other: _matcher(own, words(other)).ratio())


def _matcher(own: Sequence[str], other: Sequence[str]) -> SequenceMatcher[str]:
    return SequenceMatcher(None, [*map(str.strip, other)], [*map(str.strip, own)], autojunk=False)
