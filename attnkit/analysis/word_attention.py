"""Attention from one word to another: heads ranked by its weight."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnkit.analysis.maps import AttentionMaps, Token
from attnkit.data.text_form import MARK
from attnkit.errors import UsageError
from attnkit.text import quoted


class HeadReading(NamedTuple):
    """Attention of one head from a word to another word."""

    layer: int
    head: int
    weight: float
    """Weight summed over the tokens of the attended word, averaged over the tokens of the attending word, with all
    their occurrences."""
    most_read: str
    """Word with the highest weight for the same queries."""
    highest: float
    """Weight of that word."""


def rank_heads(maps: AttentionMaps, reader: str, read: str) -> list[HeadReading]:
    """Return all heads by the weight that the word `reader` gives to the word `read`, highest first.

    Words are compared without case and surrounding punctuation. Raises UsageError, which lists the words, if one is
    missing.
    """
    words = maps.by_word()
    rows = _places(words.queries, reader, f"--from {reader}")
    columns = _places(words.keys, read, f"--to {read}")
    readings = []
    for layer, of_layer in zip(words.layers, words.weights, strict=True):
        for head, weights in zip(words.heads, of_layer, strict=True):
            mean = weights[rows].mean(0, dtype=np.float64)  # [S]
            top = int(mean.argmax())
            found = float(mean[columns].sum()), _word(words.keys[top]), float(mean[top])
            readings.append(HeadReading(layer.number, head, *found))
    return sorted(readings, key=lambda one: -one.weight)


def has_word(tokens: Sequence[Token], word: str) -> bool:
    """Return whether the tokens contain a word."""
    text = "".join(token.text for token in tokens if not token.special)
    return _plain(word) in map(_plain, text.split(MARK))


def _places(words: Sequence[Token], wanted: str, option: str) -> list[int]:
    places = [at for at, word in enumerate(words) if _plain(word.text) == _plain(wanted)]
    if not places:
        known = ", ".join(dict.fromkeys(_word(word) for word in words if not word.special))
        raise UsageError(f"{option}: the text has no word {quoted(wanted)}; it has {known}")
    return places


def _word(token: Token) -> str:
    return token.text.strip(MARK)


def _plain(text: str) -> str:
    """Return a word in lower case without what surrounds its letters and digits."""
    word = text.strip(MARK).casefold()
    inside = [at for at, sign in enumerate(word) if sign.isalnum()]
    return word[inside[0] : inside[-1] + 1] if inside else word
