"""Attention to every `rate`-th token of long float32 sequences on a CPU, by oneDNN's products.

One residue of one head at a time is a dense attention over length / rate tokens, of which some
queries at a time stay in the cache: scores, their softmax, its product with the values.  torch's
fused kernel leaves its products to MKL, which keeps to narrow vectors on many processors; where
pieces are large oneDNN's are up to twice as fast.  Nothing is kept for the backward pass but
answers, and the softmax is made anew.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.dense import ONEDNN

Heads: TypeAlias = Float[Tensor, "B H T D"]

SHORTEST = 512
"""Tokens of a residue; for fewer, a call costs more than its product gains."""

ROWS = 512
"""Queries that are treated at a time."""


class Strides(NamedTuple):
    """Which keys are seen: those at multiples of `rate`, and none that is later if causal."""

    rate: int
    causal: bool

    def suits(self, q: Heads) -> bool:
        """Whether these queries, and keys like them, are answered here."""
        return (
            ONEDNN is not None
            and q.dtype == torch.float32
            and q.device.type == "cpu"
            and q.shape[2] >= self.rate * SHORTEST
            and bool(torch.backends.mkldnn.enabled)
        )

    def forward(self, q: Heads, k: Heads, v: Heads) -> tuple[Heads, Float[Tensor, "B H T 1"]]:
        """Answers, and logarithms of the softmax sums."""
        y, logs = torch.empty_like(q), q.new_empty((*q.shape[:3], 1))
        later = self._later(q)
        for place in self._places(q):
            query, keys, values = (_dense(x[place]) for x in (q, k, v))
            query *= q.shape[3] ** -0.5
            for rows, end in self._runs(len(query)):
                scores = self._scores(query[rows], keys[:end], later)
                weights = scores.softmax(1)
                y[place][rows] = _times(weights, values[:end].t())
                # the largest weight is exp(largest score - logarithm of the sum)
                largest = weights.amax(1, keepdim=True).log_()
                logs[place][rows] = scores.amax(1, keepdim=True).sub_(largest)
        return y, logs

    def back(
        self, grad: Heads, shift: Float[Tensor, "B H T 1"], q: Heads, k: Heads, v: Heads
    ) -> tuple[Heads, Heads, Heads]:
        """Gradients of q, k, v; `shift` is the gradient of the answers times them, summed.

        Where this is one part of a softmax, both come times its weight, with the joint answers.
        """
        q_grad, k_grad, v_grad = (torch.empty_like(x) for x in (q, k, v))
        later = self._later(q)
        for place in self._places(q):
            query, keys, values, slopes = (_dense(x[place]) for x in (q, k, v, grad))
            query *= q.shape[3] ** -0.5
            k_sum, v_sum = (keys.new_zeros(keys.shape[::-1]) for _ in range(2))
            for rows, end in self._runs(len(query)):
                some, slope = query[rows], slopes[rows]
                weights = self._scores(some, keys[:end], later).softmax(1)
                v_sum[:, :end] += _times(slope.t(), weights.t())
                slope = _times(slope, values[:end]).sub_(shift[place][rows]).mul_(weights)
                q_grad[place][rows] = _times(slope, keys[:end].t())
                k_sum[:, :end] += _times(some.t(), slope.t())
            k_grad[place], v_grad[place] = k_sum.t(), v_sum.t()
        return q_grad.mul_(q.shape[3] ** -0.5), k_grad, v_grad

    def _later(self, q: Heads) -> Float[Tensor, "t t"] | None:
        """What hides the later keys among those of some queries: 0 and -inf."""
        if not self.causal:
            return None
        return q.new_full((ROWS, ROWS), -torch.inf).triu_(1)

    def _scores(
        self, query: Float[Tensor, "t D"], keys: Float[Tensor, "s D"], later: Tensor | None
    ) -> Float[Tensor, "t s"]:
        scores = _times(query, keys)
        if later is not None:  # the last key is the last query's own
            scores[:, len(keys) - len(query) :] += later[: len(query), : len(query)]
        return scores

    def _places(self, q: Heads) -> Iterator[tuple[int, int, slice]]:
        """Row, head and tokens of each dense attention."""
        for row in range(q.shape[0]):
            for head in range(q.shape[1]):
                for first in range(self.rate):
                    yield row, head, slice(first, None, self.rate)

    def _runs(self, length: int) -> Iterator[tuple[slice, int]]:
        """Which queries, and where their keys end."""
        for start in range(0, length, ROWS):
            stop = min(length, start + ROWS)
            yield slice(start, stop), stop if self.causal else length


def _dense(x: Float[Tensor, "t D"]) -> Float[Tensor, "t D"]:
    """A copy without gaps: with gaps oneDNN has nothing fast."""
    return torch.empty(x.shape, dtype=x.dtype).copy_(x)


def _times(x: Float[Tensor, "t d"], w: Float[Tensor, "s d"]) -> Float[Tensor, "t s"]:
    """x w^T."""
    y: Tensor = ONEDNN.default(x, w, None, "none", [], "")  # type: ignore[union-attr]
    return y
