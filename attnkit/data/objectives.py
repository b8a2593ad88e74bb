"""Rows as a model reads them: noise of pre-training objectives, and marked positions.

Masked tokens as in BERT (Devlin et al. 2019, section 3.1): 15 % of the tokens of a text are predicted. The model sees
the mask in place of 80 % of them, a random token in place of 10 %, and the token itself in the other 10 %. Each token
is drawn independently of the windows that the text is cut into: windows of every length hide the same tokens.

Span corruption as in T5 (Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", sections 3.1.4 and 3.3.4): 15 % of the tokens of a text are noise, in spans of 3 on average. The source
is the text with each span replaced by its own sentinel; the target is each sentinel followed by its span, and a last
sentinel. The lengths of spans and of the gaps between them are drawn as in T5's code: both are split at random into as
many parts as there are spans, each at least one token long, and a text begins with a gap.

In tagging, each source token has a target or `NOTHING`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attnkit.data.encoded import Blocks, Encoded, Ids, Ragged
from attnkit.data.text_form import NOTHING
from attnkit.data.tokenizer import EOS, PAD, Vocabulary
from attnkit.errors import DataError
from attnkit.recipe.schema import Recipe
from attnkit.text import RESERVED, counted

MASK = "<mask>"
DENSITY = 0.15
"""Share of the tokens to predict."""
HIDDEN, RANDOM = 0.8, 0.1
"""Shares of the tokens to predict that are replaced by the mask, and by a random token."""
MEAN_SPAN = 3
SIGNATURES = {"span-corruption": f"noise:{DENSITY}|span:{MEAN_SPAN}", "masked": f"masked:{DENSITY}"}
"""Description of the noise in the signature of a score, by `train.objective`."""
FIXED = (0, 0)
"""Seed and epoch of the noise in validation and test."""
_OF_SPANS, _OF_MASKS = 2, 3
"""Seeds that distinguish these draws from each other and from `batch.plan`, which uses 0 and 1."""
CHUNK = 2**20
"""Number of tokens masked at a time."""

Bits = np.random.PCG64


def objective_of(recipe: Recipe) -> str:
    """Return `train.objective`, or tagging for this task."""
    return "tagging" if recipe.task == "tagging" else recipe.train.objective


def apply_objective(
    stream: Encoded, vocabulary: Vocabulary, objective: str, length: int, noise: tuple[int, int] = FIXED
) -> Encoded:
    """Return rows as the model reads them under an objective of `objective_of`: with noise, marked, or unchanged."""
    if objective == "tagging":
        return mark(stream, vocabulary)
    if objective == "span-corruption":
        return corrupt_spans(stream, vocabulary, length, noise)
    return mask_tokens(stream, vocabulary, length, noise) if objective == "masked" else stream


def mask_tokens(stream: Encoded, vocabulary: Vocabulary, length: int, noise: tuple[int, int] = FIXED) -> Encoded:
    """Cut a language modeling stream into windows of `length` tokens, and mask tokens.

    The source of a row is its window with noise; the target is the window with PAD in place of all tokens that are not
    predicted. The last window may be shorter. Ends of paragraphs are never hidden. The vocabulary needs the `MASK`.

    A pure function of its arguments; `noise` is (seed, epoch), and each epoch masks other tokens.
    """
    ids: Ids = stream.target.ids
    mask, pieces = vocabulary.id_of(MASK), np.uint64(len(vocabulary) - len(RESERVED))
    # one random stream, independent of CHUNK: the draws of all tokens, then all random tokens
    draws, random_draws = (np.random.PCG64((*noise, _OF_MASKS)) for _ in range(2))
    random_draws.advance(len(ids))
    source, target = np.empty(len(ids), ids.dtype), np.empty(len(ids), ids.dtype)
    for start in range(0, len(ids), CHUNK):
        here = slice(start, start + CHUNK)
        part = ids[here]
        draw = draws.random_raw(len(part)) / 2.0**64 / DENSITY  # below 1: predicted
        predicted = (draw < 1) & (part != EOS)
        random = random_draws.random_raw(len(part)) % pieces + np.uint64(len(RESERVED))
        source[here] = np.where(predicted & (draw < HIDDEN + RANDOM), random.astype(ids.dtype), part)
        source[here][predicted & (draw < HIDDEN)] = mask
        target[here] = np.where(predicted, part, ids.dtype.type(PAD))
    windows = Blocks(target, length)
    return replace(stream, source=Ragged(source, np.append(windows.starts, len(ids))), target=windows)


def noise_of(length: int) -> tuple[int, int]:
    """Return the number of noise tokens and of spans in a text of `length` tokens, at least 2."""
    noise = min(max(round(length * DENSITY), 1), length - 1)
    return noise, min(max(round(noise / MEAN_SPAN), 1), length - noise)


def sentinels(max_length: int) -> tuple[str, ...]:
    """Return the special tokens for texts of at most `max_length` tokens, as T5 spells them."""
    return tuple(f"<extra_id_{number}>" for number in range(noise_of(max_length)[1] + 1))


def corrupt_spans(stream: Encoded, vocabulary: Vocabulary, max_length: int, noise: tuple[int, int] = FIXED) -> Encoded:
    """Convert a language modeling stream to pairs of corrupted texts and their missing spans.

    Texts are the stream's tokens without the ends of paragraphs, cut every `max_length` tokens; the last text may be
    shorter. The vocabulary needs the `sentinels`.

    A pure function of its arguments; `noise` is (seed, epoch), and each epoch has other spans. Raises DataError if
    there are fewer than two tokens.
    """
    ids = stream.target.ids[stream.target.ids != EOS]
    sentinel_ids = np.array([vocabulary.id_of(piece) for piece in sentinels(max_length)], ids.dtype)
    gap_bits = Bits((*noise, _OF_SPANS))
    end = len(ids) // max_length * max_length
    parts = [ids[:end].reshape(-1, max_length), ids[None, end:]]
    parts = [part for part in parts if part.shape[1] > 1 and len(part)]
    if not parts:
        raise DataError(f"the text has {counted(len(ids), 'token')}; span corruption needs at least 2")
    sources, targets = list[Ids](), list[Ids]()
    for part in parts:
        rows, length = part.shape
        # The random stream holds the draws of all gaps, then of all spans; it does not depend on CHUNK.
        span_bits = Bits()
        span_bits.state = gap_bits.state
        span_bits.advance(rows * (length - noise_of(length)[0] - 1))
        step = max(1, CHUNK // length)
        for start in range(0, rows, step):
            source, target = _pairs(part[start : start + step], sentinel_ids, gap_bits, span_bits)
            sources.append(source)
            targets.append(target)
        gap_bits = span_bits
    return replace(stream, source=_rows(sources), target=_rows(targets))


def _rows(parts: Sequence[Ids]) -> Ragged:
    """Concatenate parts [n, S] into rows; the rows of a part have equal lengths."""
    widths = np.concatenate([np.full(len(part), part.shape[1]) for part in parts])
    return Ragged(np.concatenate([part.ravel() for part in parts]), np.append(0, widths.cumsum()))


def _pairs(texts: Ids, sentinel_ids: Ids, gap_bits: Bits, span_bits: Bits) -> tuple[Ids, Ids]:
    """Return sources with EOS [n, S] and targets without EOS [n, T] of texts [n, L]."""
    rows, length = texts.shape
    noise, spans = noise_of(length)
    gaps = _split(rows, length - noise, spans, gap_bits)
    lengths = np.stack((gaps, _split(rows, noise, spans, span_bits)), 2)  # [n, spans, 2]: gap, span
    masked = np.repeat(np.tile([False, True], rows * spans), lengths.ravel()).reshape(rows, length)
    first = masked.copy()
    first[:, 1:] &= ~masked[:, :-1]
    number = first.cumsum(1)  # number of the span, from 1
    source = np.full((rows, length - noise + spans + 1), EOS, texts.dtype)
    kept = ~masked | first
    source[:, :-1] = np.where(first, sentinel_ids[number - 1], texts)[kept].reshape(rows, -1)
    target = np.full((rows, noise + spans + 1), sentinel_ids[spans], texts.dtype)
    number = number[masked].reshape(rows, noise)
    places = np.arange(noise) + number  # token of span k: k sentinels precede it
    np.put_along_axis(target, places, texts[masked].reshape(rows, noise), 1)
    begins = first[masked].reshape(rows, noise)
    row, token = begins.nonzero()
    target[row, places[row, token] - 1] = sentinel_ids[number[row, token] - 1]
    return source, target


def _split(rows: int, total: int, parts: int, bits: Bits) -> NDArray[np.int64]:
    """Return random lengths [rows, parts] of at least 1 that sum to `total` in each row."""
    keys = bits.random_raw(rows * (total - 1)).reshape(rows, total - 1)
    cuts = np.sort(keys.argsort(1, kind="stable")[:, : parts - 1], 1) + 1
    edges = np.zeros((rows, parts + 1), np.int64)
    edges[:, 1:-1], edges[:, -1] = cuts, total
    return np.diff(edges)


class MarkedTargets(Ragged):
    """Targets aligned with their source, PAD if nothing is predicted and at the end."""

    def last(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return PAD: the end of a source has no target."""
        return np.full(len(rows), PAD)


def mark(encoded: Encoded, vocabulary: Vocabulary) -> Encoded:
    """Return rows whose targets are the answers at each position of the source."""
    assert isinstance(encoded.target, Ragged)
    ids = np.array(encoded.target.ids)
    if NOTHING in vocabulary:
        ids[ids == vocabulary.id_of(NOTHING)] = PAD
    return replace(encoded, target=MarkedTargets(ids, encoded.target.offsets))


def check_marked(encoded: Encoded, vocabulary: Vocabulary, name: str) -> None:
    """Raise DataError if a target does not fit its source, or there is nothing to learn."""
    assert encoded.source is not None
    uneven = np.flatnonzero(encoded.source.lengths != encoded.target.lengths + 1)
    if len(uneven):
        row = int(uneven[0])
        tokens, targets = int(encoded.source.lengths[row]) - 1, int(encoded.target.lengths[row])
        raise DataError(
            f"{name}: row {row + 1} has {tokens} token{'s' * (tokens != 1)} but {targets} "
            f"target{'s' * (targets != 1)}; give one target per token ({NOTHING}: no prediction)"
        )
    if NOTHING not in vocabulary:
        return
    answers = np.unique(encoded.target.ids[encoded.target.ids != vocabulary.id_of(NOTHING)])
    if not len(answers):
        raise DataError(f"{name}: all targets are {NOTHING}: there is nothing to learn")
    if len(answers) == 1:
        only = vocabulary.pieces([int(answers[0])])[0].strip("\u2581 ")
        raise DataError(f"{name}: all targets other than {NOTHING} are {only}: there is nothing to learn")
