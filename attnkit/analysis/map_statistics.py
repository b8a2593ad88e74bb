"""Statistics of attention heads: the spread of their weights, and the distance and kind of attended keys."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.maps import AttentionMaps, Token

SLACK = 1e-3
"""Tolerance for the sum of a row (1) and for negative weights in a distribution."""

Square = Float[NDArray[np.float64], "T S"]


class HeadStatistics(NamedTuple):
    """Statistics of one head, averaged over its queries; None if undefined."""

    entropy: float | None
    """Entropy of the rows in bits; None if they are not distributions."""
    spread: float | None
    """Entropy as a fraction of the maximum, log2 of the number of visible keys; over queries that see at least two."""
    distance: float | None
    """Mean distance of keys, weighted by absolute attention weight. Self-attention: |i - j| in tokens. Cross
    attention: |i / T - j / S|, the difference of the relative positions of their centers."""
    first: float
    """Weight on the first key."""
    last: float | None
    """Weight on the last key that is not a special token; in a decoder, on the query's own position."""
    end: float | None
    """Weight on the special token that ends the keys; None if there is none."""
    special: float
    """Weight on all special tokens."""


def statistics(maps: AttentionMaps) -> tuple[tuple[HeadStatistics, ...], ...]:
    """Return statistics by layer and head; weights are not normalized, so they may not be fractions of 1."""
    rows, columns = maps.weights.shape[2:]
    if not rows * columns:
        nothing = HeadStatistics(None, None, None, 0.0, None, None, 0.0)
        return tuple(tuple(nothing for _ in maps.heads) for _ in maps.layers)
    causal = maps.kind == "decoder"
    i, j = np.arange(rows)[:, None], np.arange(columns)
    distances = np.abs(i - j).astype(np.float64)  # [T, S]
    if maps.kind == "cross":
        distances = np.abs((i + 0.5) / rows - (j + 0.5) / columns)
    largest = np.log2(np.arange(1, rows + 1) if causal else np.full(rows, columns))  # bits [T]
    special = np.array([token.special for token in maps.keys])
    text = np.flatnonzero(~special)

    def of_head(head: Float[NDArray[np.float32], "T S"]) -> HeadStatistics:
        weights = head.astype(np.float64)
        total = np.abs(weights).sum(1)
        nonzero = total > 0  # rows with any weight
        distance = (np.abs(weights) * distances).sum(1)[nonzero] / total[nonzero]
        means = weights.mean(0)
        last = float(means[text[-1]]) if len(text) else None
        entropy, spread = _entropy(weights, largest)
        return HeadStatistics(
            entropy,
            spread,
            float(distance.mean()) if nonzero.any() else None,
            first=float(means[0]),
            last=float(weights.diagonal().mean()) if causal else last,
            end=float(means[-1]) if special[-1] and columns > 1 else None,
            special=float(means[special].sum()),
        )

    return tuple(tuple(of_head(head) for head in layer) for layer in maps.weights)


class AttentionSink(NamedTuple):
    """A key that gets most of the attention, such as the begin token or another first token.

    Source: Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks".
    """

    position: int
    """Index of the key."""
    token: Token
    share: float
    """Mean absolute weight over layers, heads and queries (in a decoder, queries that see at least `MIN_KEYS` keys)
    as a fraction of that of all keys if these sum to more than 1."""


MIN_KEYS = 4
"""Minimum number of keys among which a majority of the attention on one key is remarkable."""


def attention_sink(maps: AttentionMaps) -> AttentionSink | None:
    """Return the key that gets more than half of the attention; None if there is none."""
    rows = maps.weights[:, :, MIN_KEYS - 1 :] if maps.kind == "decoder" else maps.weights
    if rows.size == 0 or len(maps.keys) < MIN_KEYS:
        return None
    means = np.abs(rows).mean((0, 1, 2), dtype=np.float64)
    position = int(means.argmax())
    share = float(means[position] / max(means.sum(), 1.0))
    return AttentionSink(position, maps.keys[position], share) if share > 0.5 else None


def _entropy(weights: Square, largest: Float[NDArray[np.float64], " T"]) -> tuple[float | None, float | None]:
    """Return the entropy in bits, and as a fraction of the maximum."""
    if weights.min() < -SLACK or np.abs(weights.sum(1) - 1).max() > SLACK:
        return None, None
    weights = weights.clip(0, None)
    logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
    # 0, not -0, for rows with one key
    bits = 0.0 - (weights * logs).sum(1)
    several = largest > 0
    share = float((bits[several] / largest[several]).mean()) if several.any() else None
    return float(bits.mean()), share
