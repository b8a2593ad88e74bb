"""Words of any text, and which of them differ from another text."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

import regex

from attnkit.scoring.metrics.tokenizers import UNSPACED

_PARTS = regex.compile(r"([\p{P}\p{S}]*)(.*?)([\p{P}\p{S}]*)\Z", regex.DOTALL)
"""Punctuation before and after a chunk, and what is between."""
_WORDS = regex.compile(rf"[{UNSPACED}]\p{{M}}*|[^{UNSPACED}]+")
"""Scripts that put no space between words: there each character is a word."""


class Word(NamedTuple):
    """A word or a punctuation mark."""

    text: str
    space: bool
    """Whether white space stands before it."""


class Span(NamedTuple):
    """A part of a text that differs from the other text, or does not."""

    text: str
    """Words with the spaces between them; empty where words of the other text are missing."""
    space: bool
    differs: bool


def words(text: str) -> list[Word]:
    """The words of a text; punctuation around them counts as words of its own."""
    return [
        Word(part, not place) for chunk in text.split() for place, part in enumerate(_parts(chunk))
    ]


@lru_cache(1 << 16)
def _parts(chunk: str) -> tuple[str, ...]:
    """A chunk without spaces, cut at its outer punctuation and at unspaced characters."""
    before, inner, after = _PARTS.findall(chunk)[0]
    return (*before, *_WORDS.findall(inner), *after)


def marked(text: str, against: str) -> list[Span]:
    """A text in spans, those that differ from another text marked (difflib, word by word)."""
    own, out = words(text), []
    for kind, _, _, start, end in _matcher(own, words(against)).get_opcodes():
        some = own[start:end]
        shown = "".join(f" {w.text}" if w.space and n else w.text for n, w in enumerate(some))
        out.append(Span(shown, not some or some[0].space, kind != "equal"))
    return out


def nearest_text(text: str, others: Sequence[str]) -> str:
    """Which of some texts has the most words in common with this one; the first of equals."""
    if len(others) == 1:
        return others[0]
    own = words(text)
    return max(others, key=lambda other: _matcher(own, words(other)).ratio())


def _matcher(own: Sequence[Word], other: Sequence[Word]) -> SequenceMatcher[str]:
    return SequenceMatcher(
        None, [word.text for word in other], [word.text for word in own], autojunk=False
    )
