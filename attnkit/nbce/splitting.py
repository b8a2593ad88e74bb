"""Texts split into overlapping windows, between words or sentences; no text is changed."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Literal

from attnkit.errors import UsageError
from attnkit.text import quoted

Unit = Literal["tokens", "sentences"]

_CLOSING = "\"')\\]\u2019\u201d\u00bb"
_WIDE = "\u3002\uff01\uff1f"
_IDEOGRAPH = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"

_WORD = re.compile(rf"(?<=\s)(?=\S)|(?<=[{_IDEOGRAPH}{_WIDE}\uff0c\u3001])(?=[{_IDEOGRAPH}])")
"""Where a word begins, or an ideograph after another."""
_END = re.compile(
    rf"[{_WIDE}]+[{_CLOSING}\u300d\u300f\uff09]*\s*|[.!?\u2026]+[{_CLOSING}]*\s+|\n[ \t]*\n\s*"
)
"""What may end a sentence, with the space behind it."""
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'\u201c\u2018])(?:[A-Za-z]|[A-Za-z](?:\.[A-Za-z])+|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Capt"
    r"|Sgt|Lt|Rev|Hon|Gov|Sen|Rep|No|Nr|Vol|Fig|fig|eq|Eq|vs|cf|ca|etc|al|approx|Inc|Ltd|Co|Corp"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|usw|bzw|vgl|Abs|pp|p)\.$"
)
"""A full stop that belongs to the word before it."""
_LATER = re.compile(r"[a-z,;:)\u00e0-\u00ff]")
"""What does not begin a sentence."""


def windows(
    text: str, count: Callable[[str], int], size: int, overlap: int = 0, unit: Unit = "tokens"
) -> list[tuple[int, int]]:
    """Overlapping stretches (start, end) of a text that cover it in order.

    By tokens, a stretch has at most `size` of them when it is encoded by itself, and begins and
    ends between words where it can; by sentences, it has `size` of those.

    Raises:
        UsageError: `overlap` is not below `size`, or one character has more than `size` tokens.
    """
    if size < 1:
        raise UsageError(f"a window must hold at least 1 of {unit}, got {size}")
    if not 0 <= overlap < size:
        raise UsageError(f"the overlap must be at least 0 and below the window {size}: {overlap}")
    if unit == "tokens":
        return _token_windows(text, count, size, overlap)
    ends = sentences(text)
    starts = [0, *ends]
    firsts = range(0, max(1, len(ends) - overlap), size - overlap) if ends else ()
    return [(starts[first], ends[min(first + size, len(ends)) - 1]) for first in firsts]


def sentences(text: str) -> list[int]:
    """Where each sentence of a text ends, with the white space behind it; the last is its length.

    By rules: a stop, a question or an exclamation mark (with what closes a quotation) before white
    space and no small letter, unless it belongs to an abbreviation or an initial; a blank line;
    East Asian marks anywhere.  An empty text has none.
    """
    ends: list[int] = []
    for match in _END.finditer(text):
        mark = match[0].rstrip()
        if mark.startswith("."):
            before = text[max(0, match.start() - 24) : match.start() + 1]
            plain = mark == "." and _ABBREVIATION.search(before)
            if plain or _LATER.match(text, match.end()):
                continue
        elif mark and mark[0] in "!?\u2026" and _LATER.match(text, match.end()):
            continue
        if ends or text[: match.end()].strip():
            ends.append(match.end())
    if text and (not ends or ends[-1] < len(text)):
        ends.append(len(text))
    return ends


def _token_windows(
    text: str, count: Callable[[str], int], size: int, overlap: int
) -> list[tuple[int, int]]:
    words = sorted({0, *(match.start() for match in _WORD.finditer(text)), len(text)})
    found: list[tuple[int, int]] = []
    start, guess = 0, 4 * size
    while start < len(text):
        end = _reach(text, words, start, size, count, guess)
        if found and end <= found[-1][1]:  # no room for a long word behind the overlap
            start = min(words[bisect_right(words, start)], found[-1][1])
            continue
        found.append((start, end))
        guess = end - start
        if end == len(text):
            break
        start = _back(text, words, (start, end), overlap, count) if overlap else end
    return found


def _reach(
    text: str, words: list[int], start: int, size: int, count: Callable[[str], int], guess: int
) -> int:
    """The end of the longest stretch from `start` that fits, likely `guess` characters on."""

    def fits(end: int) -> bool:
        return count(text[start:end]) <= size

    first = bisect_right(words, start)
    end = _last(words[first : first + 4 * size], fits, start + guess)
    if end is None:
        end = _last(_characters(text, start, words[first]), fits, start + guess)
    if end is None:
        raise UsageError(
            f"a window of {size:,} tokens is too small for the character {quoted(text[start])}"
        )
    return end


def _back(
    text: str, words: list[int], span: tuple[int, int], overlap: int, count: Callable[[str], int]
) -> int:
    """Where the longest stretch of at most `overlap` tokens begins that ends where `span` does."""
    start, end = span
    places = words[bisect_right(words, start) : bisect_left(words, end)]
    places = places or _characters(text, start, end)
    longer = _last(places, lambda place: count(text[place:end]) > overlap, end - overlap * 4)
    first = 0 if longer is None else places.index(longer) + 1
    return places[first] if first < len(places) else end


def _last(places: Sequence[int], fits: Callable[[int], bool], guess: int) -> int | None:
    """The last place that fits, where those that fit come first; sought from the guess on."""
    good, bad, step = -1, len(places), 1
    at = bisect_right(places, guess) - 1
    while bad - good > 1:
        at = min(max(at, good + 1), bad - 1)
        if fits(places[at]):
            good, at = at, at + step
        else:
            bad, at = at, at - step
        step *= 2
        if good >= 0 and bad < len(places):
            at = (good + bad) // 2
    return None if good < 0 else places[good]


def _characters(text: str, start: int, end: int) -> list[int]:
    """Places between characters as people see them, behind `start` and up to `end`."""

    def joined(place: int) -> bool:
        mark = unicodedata.category(text[place])[0] == "M"
        return mark or "\u200d" in text[place - 1 : place + 1]

    return [p for p in range(start + 1, end + 1) if p == len(text) or not joined(p)]
