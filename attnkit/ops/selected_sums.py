"""What earlier tokens have taken from each key, summed in blocks of queries for selective attention.

The sums of a text of T tokens are T x T numbers, as many as the scores of a head.  One operation at
a time, they, their gradients and what is between them pass through memory a dozen times; here once.
Inside a block a product with a triangle of ones sums over the queries.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnkit.ops.autograd import once_differentiable
from attnkit.ops.score_chunks import CHUNK, product

QUERIES = 32
"""Queries of a row at once: a triangle of more queries costs more than it saves."""
KEPT = 2**21
"""Numbers taken in a call up to which they are kept for gradients, not made again."""


def selected_sums(
    q: Float[Tensor, "B T D"],
    k: Float[Tensor, "B T D"],
    q_pos: Int[Tensor, "b T"],
    k_pos: Int[Tensor, "b T"],
    scale: float,
) -> tuple[Float[Tensor, "B T T"], Float[Tensor, "B T"]]:
    """-sum_(m<i) relu(scale q_m k_j) over tokens m behind j, for i and j; and the sum over all m.

    The tokens are those of a whole text in order, so that none behind m is before it.  The token at position 0 loses
    nothing, and pads, which have that position too, take nothing.
    """
    found: tuple[Tensor, Tensor] = SelectedSums.apply(q, k, q_pos, k_pos, scale)  # type: ignore[no-untyped-call]
    return found


class SelectedSums(torch.autograd.Function):
    """`selected_sums`; see there."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """[B, T, T] and [B, T]."""
        rows, queries = q.shape[:2]
        sums, total, kept = q.new_empty(rows, queries, queries), q.new_zeros(rows, queries), list[Tensor]()
        for block in blocks(q):
            taken = _taken(q, k, q_pos, k_pos, scale, block)
            before, own = total[block.rows, : block.last], sums[block.rows, block.first : block.last]
            earlier = _ones(taken).tril_(-1).expand(len(taken), -1, -1)
            torch.baddbmm(before[:, None], earlier, taken, beta=-1, alpha=-1, out=own[..., : block.last])
            own[..., block.last :] = 0
            before += taken.sum(1)
            if sums.numel() <= KEPT:
                kept.append(taken)
        ctx.save_for_backward(q, k, q_pos, k_pos, *kept)
        ctx.scale = scale
        return sums, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, of_total: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of queries and keys."""
        q, k, q_pos, k_pos, *kept = ctx.saved_tensors
        to_q, to_k, behind = torch.empty_like(q), torch.empty_like(k), of_total.clone()
        for block in reversed(list(blocks(q))):
            rows, queries, seen = block.rows, slice(block.first, block.last), slice(block.last)
            taken = kept.pop() if kept else _taken(q, k, q_pos, k_pos, ctx.scale, block)
            own, sums = grad[rows, queries, seen], behind[rows, seen]
            later = _ones(taken).triu_(1).expand(len(taken), -1, -1)
            slopes = torch.baddbmm(sums[:, None], later, own, alpha=-1)
            sums -= own.sum(1)
            slopes = torch.ops.aten.threshold_backward(slopes, taken, 0)
            to_q[rows, queries] = product(slopes, k[rows, seen], ctx.scale)
            into = product(slopes.transpose(1, 2), q[rows, queries], ctx.scale)
            if block.last == q.shape[1]:
                to_k[rows] = into
            else:
                to_k[rows, seen] += into
        return to_q, to_k, None, None, None


class RowsOfQueries(NamedTuple):
    """Some queries of some rows."""

    rows: slice
    first: int
    last: int
    """The query behind them."""


def blocks(q: Float[Tensor, "B T D"]) -> Iterator[RowsOfQueries]:
    """The blocks of a call, those of the same rows in the order of their queries."""
    rows, queries = q.shape[:2]
    depth = max(1, CHUNK // (min(QUERIES, queries) * queries))
    for row in range(0, rows, depth):
        for first in range(0, queries, QUERIES):
            yield RowsOfQueries(slice(row, row + depth), first, min(first + QUERIES, queries))


def _ones(taken: Float[Tensor, "n t s"]) -> Float[Tensor, "t t"]:
    return taken.new_ones(taken.shape[1], taken.shape[1])


def _taken(
    q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, scale: float, block: RowsOfQueries
) -> Float[Tensor, "n t s"]:
    """What the queries of a block take from the keys up to their own."""
    rows, queries, seen = block.rows, slice(block.first, block.last), slice(block.last)
    own = slice(None) if len(q_pos) == 1 else rows
    at, keys = q_pos[own, queries, None], k_pos[own, None, seen]
    hidden = q.new_zeros(()).masked_fill((keys == 0) | (keys >= at), -torch.inf)
    q, k = q[rows, queries], k[rows, seen]
    return torch.baddbmm(hidden.expand(len(q), -1, -1), q, k.transpose(1, 2), alpha=scale).relu_()
