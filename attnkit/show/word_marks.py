"""Words of a text, and which of them differ from another text."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache

import regex

from attnkit.scoring.metrics.tokenizers import UNSPACED

_PARTS = regex.compile(r"([\p{P}\p{S}]*)(.*?)([\p{P}\p{S}]*)\Z", regex.DOTALL)
"""Leading punctuation, content and trailing punctuation of a chunk."""
_WORDS = regex.compile(rf"[{UNSPACED}]\p{{M}}*|[^{UNSPACED}]+")
"""In scripts without spaces between words, each character is a word."""


def mark_differences(text: str, references: Sequence[str]) -> str:
    """Return the text with its differences from the nearest reference in brackets; [_]: words are missing."""
    parts = (
        " " * span.startswith(" ") + f"[{span.strip() or '_'}]" if differs else span
        for span, differs in spans(text, nearest_text(text, references))
    )
    return "".join(parts).strip()


def spans(text: str, against: str) -> list[tuple[str, bool]]:
    """Return the parts of a text, and whether they differ from another text (difflib, word by word).

    A part " " represents missing words of the other text.
    """
    ours = words(text)
    return [
        ("".join(ours[start:end]) or " ", kind != "equal")
        for kind, _, _, start, end in _matcher(ours, words(against)).get_opcodes()
    ]


def words(text: str) -> list[str]:
    """Return the words of a text, with a leading space after white space and at the beginning.

    Punctuation around words is split into words of single characters.
    """
    return [part if place else f" {part}" for chunk in text.split() for place, part in enumerate(_parts(chunk))]


@lru_cache(1 << 16)
def _parts(chunk: str) -> tuple[str, ...]:
    """Return the words of a chunk without white space."""
    before, inner, after = _PARTS.findall(chunk)[0]
    return (*before, *_WORDS.findall(inner), *after)


def nearest_text(text: str, others: Sequence[str]) -> str:
    """Return the other text with the highest word similarity (difflib's ratio), the first of equals."""
    if len(others) == 1:
        return others[0]
    ours = words(text)
    return max(others, key=lambda other: _matcher(ours, words(other)).ratio())


def _matcher(ours: Sequence[str], theirs: Sequence[str]) -> SequenceMatcher[str]:
    return SequenceMatcher(None, [*map(str.strip, theirs)], [*map(str.strip, ours)], autojunk=False)
