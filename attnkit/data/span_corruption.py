"""Span corruption, the pre-training objective of T5.

Raffel et al. 2020 ("Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", sections 3.1.4 and 3.3.4): 15 % of the tokens of a text are noise, in spans of 3 on
average.  The source is the text with each span replaced by a sentinel of its own, the target is
each sentinel followed by its span, and a last sentinel.  The lengths of the spans and of the gaps
between them are drawn as in T5's code: both are split at random into as many parts as there are
spans, each at least one token long, and a text begins with a gap.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnkit.data.encoded import Encoded, Ids, Ragged
from attnkit.data.large_array import CHUNK, large_array
from attnkit.data.tokenizer import EOS, Vocabulary
from attnkit.errors import DataError

DENSITY, MEAN_SPAN = 0.15, 3
SIGNATURE = f"noise:{DENSITY}|span:{MEAN_SPAN}"
FIXED = (0, 0)
"""Seed and epoch of the noise of validation and test."""
_PURPOSE = 2
"""Tells these draws from those of `batch_plan`, which has 0 and 1."""

Bits = np.random.PCG64


def noise_of(length: int) -> tuple[int, int]:
    """Tokens of noise and number of spans in a text of so many tokens, at least 2."""
    noise = min(max(round(length * DENSITY), 1), length - 1)
    return noise, min(max(round(noise / MEAN_SPAN), 1), length - noise)


def sentinels(max_length: int) -> tuple[str, ...]:
    """The special tokens that texts of at most `max_length` tokens need, as T5 spells them."""
    return tuple(f"<extra_id_{number}>" for number in range(noise_of(max_length)[1] + 1))


def corrupted(
    stream: Encoded, vocabulary: Vocabulary, max_length: int, noise: tuple[int, int] = FIXED
) -> Encoded:
    """A stream as pairs of corrupted texts and their missing spans.

    Texts are the stream's tokens without the ends of paragraphs, cut every `max_length` tokens; the
    rest is a shorter text.  A pure function of its arguments.

    Args:
        stream: encoded for language modelling.
        vocabulary: has the `sentinels`.
        max_length: in tokens.
        noise: seed and epoch; other spans in every epoch.

    Raises:
        DataError: there are fewer than two tokens.
    """
    ids = _without_ends(stream.target.ids)
    marks = np.array([vocabulary.id_of(piece) for piece in sentinels(max_length)], ids.dtype)
    bits = Bits((*noise, _PURPOSE))
    whole = len(ids) // max_length * max_length
    texts = [ids[:whole].reshape(-1, max_length), ids[None, whole:]]
    parts = [some for some in texts if some.shape[1] > 1 and len(some)]
    if not parts:
        raise DataError(f"the text has {len(ids)} tokens; span corruption needs 2 at least")
    widths = [_widths(part.shape[1]) for part in parts]
    source, target = (
        _space([len(part) for part in parts], [pair[side] for pair in widths], ids.dtype)
        for side in (0, 1)
    )
    at = [0, 0]
    for part in parts:
        for pair in _pairs(part, marks, bits):
            for side, made in enumerate(pair):
                place = (source, target)[side].ids[at[side] : at[side] + made.size]
                place[:] = made.ravel()
                at[side] += made.size
    return replace(stream, source=source, target=target)


def _without_ends(ids: Ids) -> Ids:
    """The tokens but for the ends of paragraphs."""
    chunks = [ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK)]
    kept = large_array(sum(int((chunk != EOS).sum()) for chunk in chunks), ids.dtype)
    at = 0
    for chunk in chunks:
        some = chunk[chunk != EOS]
        kept[at : at + len(some)] = some
        at += len(some)
    return kept


def _widths(length: int) -> tuple[int, int]:
    """Tokens of the source with EOS and of the target of a text of so many tokens."""
    noise, spans = noise_of(length)
    return length - noise + spans + 1, noise + spans + 1


def _space(rows: list[int], widths: list[int], dtype: np.dtype[Any]) -> Ragged:
    """So many rows of each width, to be filled."""
    offsets = np.cumsum([0, *np.repeat(widths, rows)])
    return Ragged(large_array(int(offsets[-1]), dtype), offsets)


def _pairs(texts: Ids, marks: Ids, bits: Bits) -> Iterator[tuple[Ids, Ids]]:
    """Sources with EOS and targets without it, [n, S] and [n, T], of texts [N, L], in parts.

    First all gaps are drawn from the bits, then all spans.
    """
    rows, length = texts.shape
    noise, _ = noise_of(length)
    lengths_of_spans = Bits()
    lengths_of_spans.state = bits.state
    lengths_of_spans.advance(rows * (length - noise - 1))
    step = max(1, CHUNK // length)
    for start in range(0, rows, step):
        yield _some_pairs(texts[start : start + step], marks, bits, lengths_of_spans)
    bits.state = lengths_of_spans.state


def _some_pairs(texts: Ids, marks: Ids, of_gaps: Bits, of_spans: Bits) -> tuple[Ids, Ids]:
    """Sources and targets of some of the texts, all of one length."""
    rows, length = texts.shape
    noise, spans = noise_of(length)
    gaps = _split(rows, length - noise, spans, of_gaps)
    lengths = np.stack((gaps, _split(rows, noise, spans, of_spans)), 2)  # [N, spans, 2]: gap, span
    masked = np.repeat(np.tile([False, True], rows * spans), lengths.ravel()).reshape(rows, length)
    first = masked.copy()
    first[:, 1:] &= ~masked[:, :-1]
    number = first.cumsum(1)  # of the span, from 1
    source = np.full((rows, length - noise + spans + 1), EOS, texts.dtype)
    kept = ~masked | first
    source[:, :-1] = np.where(first, marks[number - 1], texts)[kept].reshape(rows, -1)
    target = np.full((rows, noise + spans + 1), marks[spans], texts.dtype)
    number = number[masked].reshape(rows, noise)
    places = np.arange(noise) + number  # each token stands behind as many sentinels
    np.put_along_axis(target, places, texts[masked].reshape(rows, noise), 1)
    begins = first[masked].reshape(rows, noise)
    row, token = begins.nonzero()
    target[row, places[row, token] - 1] = marks[number[row, token] - 1]
    return source, target


def _split(rows: int, total: int, parts: int, bits: Bits) -> NDArray[np.int64]:
    """For each row, random lengths [rows, parts] of at least 1 that sum to `total`."""
    keys = bits.random_raw(rows * (total - 1)).reshape(rows, total - 1)
    cuts = np.sort(keys.argsort(1, kind="stable")[:, : parts - 1], 1) + 1
    edges = np.zeros((rows, parts + 1), np.int64)
    edges[:, 1:-1], edges[:, -1] = cuts, total
    return np.diff(edges)
