"""Attention to every `rate`-th token of long float32 sequences on a CPU, alone or beside near keys.

One head at a time: what belongs to it stays in the cache.  One residue of it is a dense attention
over length / rate tokens by oneDNN's products: torch's fused kernel leaves its own to MKL, which
keeps to narrow vectors on many processors; where pieces are large oneDNN's are up to twice as fast.
The near keys are few for each query: small blocks of queries against overlapping windows, in
batches by MKL.  Nothing is kept for the backward pass but answers and logarithms of sums, from
which the softmax is made anew.  Scores are in units of log 2, as 2^x is far faster than e^x here.
The plain form is the other branch of `block_sparse.strided` and `block_sparse.joint`.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.ops.fast_cpu import PRODUCT, PRODUCT_TIMES, operator, usable
from attnkit.ops.onednn import onednn_product
from attnkit.ops.sliding_window import Band

Heads: TypeAlias = Float[Tensor, "B H T D"]
Head: TypeAlias = Float[Tensor, "T D"]
Sums: TypeAlias = Float[Tensor, "T 1"]
Grid: TypeAlias = Float[Tensor, "t rate n"]

SHORTEST, SHORTEST_FULL = 256, 512
"""Tokens of a residue; the latter if it is neither causal nor beside near keys.  For fewer, calls
cost more than their products gain.
"""
ROWS, CAUSAL_ROWS = 512, 256
"""Queries that are treated at a time; if causal, shorter runs see fewer keys in vain."""
BLOCK = 16
"""Queries of a block beside their near keys, at least."""
BATCHED, BATCHED_ROWS = 1024, 64
"""If causal, shorter residues go eight together, by MKL, in runs of so many queries."""
LOG2E = math.log2(math.e)


class Near(NamedTuple):
    """The keys less than `rate` away, other than the query's own."""

    band: Band
    bias: Float[Tensor, "blocks step width"]
    """0 where a key is seen, else -inf."""

    @classmethod
    def of(cls, q: Heads, length: int, rate: int, *, causal: bool) -> "Near":
        """For queries and keys like these, of which `length` are real."""
        step = min(max(BLOCK, rate), length)
        band = Band(step, rate, 0 if causal else rate)
        away = band.distances(q.device)
        pattern = (away > 0 if causal else away != 0) & (away.abs() < rate)
        real = torch.arange(q.shape[2], device=q.device)[None] < length
        allowed = band.allowed(pattern, real, 1, q.shape[2]).squeeze(1)
        return cls(band, q.new_zeros(allowed.shape).masked_fill_(~allowed, -torch.inf))

    def forward(self, q: Head, k: Head, v: Head) -> tuple[Head, Sums, Sums]:
        """See `Strides._far`; a query that sees no key here has a sum of 0."""
        # [blocks, step, width]
        scores = torch.baddbmm(self.bias, self._cut(q), self._windows(k).mT, alpha=_unit(q))
        top = scores.amax(2, keepdim=True).clamp_min_(torch.finfo(q.dtype).min)
        weights = scores.sub_(top).exp2_()
        y = torch.bmm(weights, self._windows(v))
        total = weights.sum(2, keepdim=True)
        y, top, total = (x.flatten(0, 1)[: len(q)] for x in (y, top, total))
        return y, top, total

    def back(
        self, grad: Head, shift: Sums, logs: Sums, q: Head, k: Head, v: Head
    ) -> tuple[Head, Head, Head]:
        """See `Strides._far_back`."""
        queries, keys, dy = self._cut(q), self._windows(k), self._cut(grad)
        scores = torch.baddbmm(self.bias, queries, keys.mT, alpha=_unit(q))
        weights = scores.sub_(self._cut(logs)).exp2_()  # [blocks, step, width]
        v_grad = self._gather(torch.bmm(weights.mT, dy), len(q))
        dscores = torch.bmm(dy, self._windows(v).mT).sub_(self._cut(shift)).mul_(weights)
        q_grad = torch.bmm(dscores, keys).flatten(0, 1)[: len(q)]
        k_grad = self._gather(torch.bmm(dscores.mul_(_unit(q)).mT, queries), len(q))
        return q_grad, k_grad, v_grad

    def _cut(self, x: Float[Tensor, "T n"]) -> Float[Tensor, "blocks step n"]:
        return self.band.cut(x[None, None]).squeeze(1)

    def _windows(self, x: Head) -> Float[Tensor, "blocks width D"]:
        return self.band.windows(x[None, None]).squeeze(1)

    def _gather(self, x: Float[Tensor, "blocks width D"], length: int) -> Head:
        return self.band.gather(x.unsqueeze(1), 1, length)[0, 0]


class Strides(NamedTuple):
    """Which keys are seen: those at multiples of `rate`, with `near` all less than it away as well;
    none that is later if causal.
    """

    rate: int
    causal: bool
    near: bool = False

    def suits(self, q: Heads) -> bool:
        """Whether these queries, and keys like them, are answered here."""
        shortest = SHORTEST if self.causal or self.near else SHORTEST_FULL
        long = q.shape[2] >= self.rate * shortest
        return long and usable(q, operators=(PRODUCT, PRODUCT_TIMES), onednn=True)

    def forward(self, q: Heads, k: Heads, v: Heads) -> tuple[Heads, Float[Tensor, "B H T 1"]]:
        """Answers, and logarithms of the softmax sums to base 2."""
        length = q.shape[2]
        q, k, v = (self._padded(x) for x in (q, k, v))
        y, logs = torch.empty_like(q), q.new_empty((*q.shape[:3], 1))
        near = Near.of(q, length, self.rate, causal=self.causal) if self.near else None
        for place in product(*map(range, q.shape[:2])):
            given = q[place], k[place], v[place]
            y_head, top, total = self._far(*given, length)
            if near is not None:
                beside, high, rest = (self._grid(x) for x in near.forward(*given))
                most = torch.maximum(top, high)
                low, high = top.sub_(most).exp2_(), high.sub(most).exp2_()
                y_head = y_head.mul_(low).addcmul_(beside, high)
                top, total = most, total.mul_(low).addcmul_(rest, high)
            torch.div(y_head, total, out=self._grid(y[place]))
            torch.add(top, total.log2_(), out=self._grid(logs[place]))
        return y[:, :, :length], logs[:, :, :length]

    def back(
        self, grad: Heads, y: Heads, logs: Float[Tensor, "B H T 1"], q: Heads, k: Heads, v: Heads
    ) -> tuple[Tensor, ...]:
        """Gradients of q, k, v, from that of the answers y."""
        length = q.shape[2]
        grad, y, logs, q, k, v = (self._padded(x) for x in (grad, y, logs, q, k, v))
        grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        near = Near.of(q, length, self.rate, causal=self.causal) if self.near else None
        for place in product(*map(range, q.shape[:2])):
            dy = grad[place].contiguous()
            shift = (dy * y[place]).sum(1, keepdim=True)
            given = dy, shift, logs[place], q[place], k[place], v[place]
            parts = self._far_back(*given, length)
            if near is not None:
                for own, other in zip(parts, near.back(*given), strict=True):
                    own += self._grid(other)
            for whole, part, unit in zip(
                grads, parts, (q.shape[3] ** -0.5, 1 / LOG2E, 1), strict=True
            ):
                torch.mul(part, unit, out=self._grid(whole[place]))
        return tuple(x[:, :, :length] for x in grads)

    def _far(self, q: Head, k: Head, v: Head, length: int) -> tuple[Grid, Grid, Grid]:
        """Values weighed by 2^(score - top), the highest score, and the sum of these weights."""
        queries, keys, values = (self._split(x) for x in (q, k, v))
        queries *= _unit(q)
        y, (top, total) = torch.empty_like(queries), queries.new_empty(2, *queries.shape[:2], 1)
        later = self._later(q)
        for some, rows, end, _ in self._runs(length):
            scores = _times(queries[some, rows], keys[some, :end])  # [n, t, s]
            if later is not None:
                scores[:, :, rows] += later[0, : scores.shape[1], : scores.shape[1]]
            high = scores.amax(2, keepdim=True)
            scores.sub_(high).exp2_()
            top[some, rows], total[some, rows] = high, scores.sum(2, keepdim=True)
            y[some, rows] = _times(scores, values[some, :end].mT)
        return y.transpose(0, 1), top.transpose(0, 1), total.transpose(0, 1)

    def _far_back(
        self, grad: Head, shift: Sums, logs: Sums, q: Head, k: Head, v: Head, length: int
    ) -> list[Grid]:
        """Gradients of q (by the scores), k and v.

        `shift` is the gradient of the answers times them, summed; with `logs` over more keys than
        these, this is their share of the joint gradient.
        """
        queries, keys, values, grads = (self._split(x) for x in (q, k, v, grad))
        queries *= _unit(q)
        shifts, sums = (self._split(-x).squeeze(2) for x in (shift, logs))
        q_grad, k_grad, v_grad = (torch.empty_like(x) for x in (queries, keys, values))
        later = self._later(q)
        for some, rows, end, new in self._runs(length):
            query, dy, key = queries[some, rows], grads[some, rows], keys[some, :end]
            # [n, s, t], as what is added to each column costs nothing then
            weights = _times(key, query, sums[some, rows])
            if later is not None:
                weights[:, rows] += later[1, : query.shape[1], : query.shape[1]]
            weights.exp2_()
            write = Tensor.copy_ if new else Tensor.add_
            write(v_grad[some, :end], _times(weights, dy.mT))
            value, shift = values[some, :end], shifts[some, rows]
            if len(value) > 1:
                dscores = _times(value, dy, shift).mul_(weights)
                q_grad[some, rows] = dscores.mT @ key
            else:
                dscores = operator(PRODUCT_TIMES)(value, weights, dy[0], shift[0], "mul")
                # of two dimensions: torch turns no others in blocks
                turned = key[0].t().contiguous()[None]
                q_grad[some, rows] = _times(turned, dscores.mT)[0].t().contiguous()[None]
            write(k_grad[some, :end], _times(dscores, query.mT))
        return [x.transpose(0, 1) for x in (q_grad, k_grad, v_grad)]

    def _later(self, q: Head) -> Float[Tensor, "2 t t"] | None:
        """What hides the later keys among those of some queries, 0 and -inf; and its transpose."""
        if not self.causal:
            return None
        later = q.new_full((CAUSAL_ROWS,) * 2, -torch.inf)
        return torch.stack((later.triu(1), later.tril(-1)))

    def _padded(self, x: Float[Tensor, "B H T n"]) -> Float[Tensor, "B H t n"]:
        """Up to a multiple of the rate."""
        spare = -x.shape[2] % self.rate
        return F.pad(x, (0, 0, 0, spare)) if spare else x

    def _grid(self, x: Float[Tensor, "t n"]) -> Grid:
        """The tokens of each residue as a column."""
        return torch.unflatten(x, 0, (-1, self.rate))

    def _split(self, x: Float[Tensor, "t n"]) -> Float[Tensor, "rate t n"]:
        """The tokens of each residue, without gaps: with gaps oneDNN has nothing fast."""
        return self._grid(x).transpose(0, 1).contiguous()

    def _runs(self, length: int) -> Iterator[tuple[slice, slice, int, bool]]:
        """Which residues, which of their queries, where their keys end, and whether these are the
        first to reach so far.
        """
        together, most = 1, CAUSAL_ROWS if self.causal else ROWS
        if self.causal and length < self.rate * BATCHED:
            together, most = 8, BATCHED_ROWS
        for first in range(0, self.rate, together):
            tokens = -(-(length - first) // self.rate)
            for start in reversed(range(0, tokens, most)):
                some, rows = slice(first, first + together), slice(start, min(tokens, start + most))
                yield some, rows, rows.stop if self.causal else tokens, rows.stop == tokens


def _times(
    x: Float[Tensor, "n t d"], w: Float[Tensor, "n s d"], bias: Float[Tensor, "n s"] | None = None
) -> Float[Tensor, "n t s"]:
    """x w^T + bias."""
    if len(x) > 1:
        return x @ w.mT if bias is None else torch.baddbmm(bias.unsqueeze(1), x, w.mT)
    return onednn_product(x, w[0], None if bias is None else bias[0])


def _unit(q: Float[Tensor, "*n D"]) -> float:
    """What makes q k a score in units of log 2."""
    return LOG2E / math.sqrt(q.shape[-1])
