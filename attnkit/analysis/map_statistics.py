"""Numbers of each head: how spread its weights are, how far it looks, what it looks at."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from attnkit.analysis.maps import AttentionMaps

SLACK = 1e-3
"""How far from 1 a row may sum, and below 0 a weight may be, in a distribution."""

Square = Float[NDArray[np.float64], "T S"]


class HeadStatistics(NamedTuple):
    """One head of one layer, averaged over its queries; None where a number means nothing."""

    entropy: float | None
    """Of the rows, in bits; None where they are no distributions."""
    spread: float | None
    """Entropy as a share of the largest possible, log2 of the keys in sight; over the queries that
    see two keys at least."""
    distance: float | None
    """Mean distance of what is looked at, by absolute weight.  Self-attention: |i - j| in tokens.
    Cross attention: |i / T - j / S|, the difference of the relative positions of their middles."""
    first: float
    """Weight on the first key."""
    last: float | None
    """Weight on the last key that is no special token; in a decoder, on the query itself."""
    end: float | None
    """Weight on the special token that closes the keys; None where there is none."""
    special: float
    """Weight on all special tokens."""


def statistics(maps: AttentionMaps) -> tuple[tuple[HeadStatistics, ...], ...]:
    """Numbers of each layer's heads, in the order of `maps.layers` and `maps.heads`.

    Weights are taken as they are: where rows do not sum to 1, shares are no shares of 1.
    """
    if 0 in maps.weights.shape[2:]:
        return tuple(tuple(_NOTHING for _ in maps.heads) for _ in maps.layers)
    view = _View(maps)
    return tuple(tuple(view.numbers(head) for head in layer) for layer in maps.weights)


_NOTHING = HeadStatistics(None, None, None, 0.0, None, None, 0.0)


class _View:
    """What all heads of some maps have in common."""

    def __init__(self, maps: AttentionMaps) -> None:
        rows, columns = maps.weights.shape[2:]
        i, j = np.arange(rows)[:, None], np.arange(columns)
        self.own = maps.kind == "decoder"
        self.far: Square = np.abs(i - j).astype(np.float64)
        if maps.kind == "cross":
            self.far = np.abs((i + 0.5) / rows - (j + 0.5) / columns)
        sight = np.arange(1, rows + 1) if self.own else np.full(rows, columns)
        self.bits = np.log2(sight)
        special = [token.special for token in maps.keys]
        self.special: Bool[NDArray[np.bool_], " S"] = np.array(special)
        self.end = columns - 1 if special[-1] and columns > 1 else None
        text = np.flatnonzero(~self.special)
        self.last = int(text[-1]) if len(text) else None

    def numbers(self, head: Float[NDArray[np.float32], "T S"]) -> HeadStatistics:
        """The numbers of one head."""
        weights = head.astype(np.float64)
        entropy, spread = self._entropy(weights)
        columns = weights.mean(0)
        last = None if self.last is None else float(columns[self.last])
        return HeadStatistics(
            entropy,
            spread,
            self._distance(np.abs(weights)),
            first=float(columns[0]),
            last=float(weights.diagonal().mean()) if self.own else last,
            end=None if self.end is None else float(columns[self.end]),
            special=float(columns[self.special].sum()),
        )

    def _entropy(self, weights: Square) -> tuple[float | None, float | None]:
        """In bits, and as a share of the largest possible."""
        if weights.min() < -SLACK or np.abs(weights.sum(1) - 1).max() > SLACK:
            return None, None
        weights = weights.clip(0, None)
        logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
        # 0 rather than -0 where a row has one key
        bits = 0.0 - (weights * logs).sum(1)
        wide = self.bits > 0
        share = float((bits[wide] / self.bits[wide]).mean()) if wide.any() else None
        return float(bits.mean()), share

    def _distance(self, weights: Square) -> float | None:
        """Mean over the rows that hold any weight."""
        total = weights.sum(1)
        some = total > 0
        if not some.any():
            return None
        return float(((weights * self.far).sum(1)[some] / total[some]).mean())
