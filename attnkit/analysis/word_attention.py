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
    """Weight summed over the tokens of the attended word and averaged over those of the attending word, over all
    occurrences of both words."""
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
    rows = _indices(words.queries, reader, f"--from {reader}")
    columns = _indices(words.keys, read, f"--to {read}")
    readings = []
    for layer, layer_weights in zip(words.layers, words.weights, strict=True):
        for head, weights in zip(words.heads, layer_weights, strict=True):
            mean = weights[rows].mean(0, dtype=np.float64)  # [S]
            best = int(mean.argmax())
            values = float(mean[columns].sum()), _word(words.keys[best]), float(mean[best])
            readings.append(HeadReading(layer.number, head, *values))
    return sorted(readings, key=lambda reading: -reading.weight)


def has_word(tokens: Sequence[Token], word: str) -> bool:
    """Return whether the tokens contain a word."""
    text = "".join(token.text for token in tokens if not token.special)
    return _normalized(word) in map(_normalized, text.split(MARK))


def _indices(words: Sequence[Token], wanted: str, option: str) -> list[int]:
    indices = [i for i, word in enumerate(words) if _normalized(word.text) == _normalized(wanted)]
    if not indices:
        known = ", ".join(dict.fromkeys(_word(word) for word in words if not word.special))
        raise UsageError(f"{option}: the text has no word {quoted(wanted)}; the words are {known}")
    return indices


def _word(token: Token) -> str:
    return token.text.strip(MARK)


def _normalized(text: str) -> str:
    """Return a word in lower case without what surrounds its letters and digits."""
    word = text.strip(MARK).casefold()
    alphanumeric = [i for i, char in enumerate(word) if char.isalnum()]
    return word[alphanumeric[0] : alphanumeric[-1] + 1] if alphanumeric else word
