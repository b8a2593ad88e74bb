"""Cumulative sums of selection scores over earlier queries, in blocks of queries, for selective attention.

The sums are a T x T matrix, like the scores of a head. As separate operations, the sums, their gradients and the
intermediate results would pass through main memory a dozen times; here they do so once. Inside a block, the cumulative
sum over queries is a product with a triangular matrix of ones.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnkit.ops.autograd import once_differentiable
from attnkit.ops.score_chunks import CHUNK_SCORES, scaled_bmm

BLOCK_QUERIES = 32
"""Number of queries of a block; larger triangles cost more than they save."""
MAX_KEPT = 2**21
"""Maximum number of elements of the sums for which selection scores are kept for the backward pass, not recomputed."""


def selected_sums(
    q: Float[Tensor, "B T D"],
    k: Float[Tensor, "B T D"],
    q_pos: Int[Tensor, "b T"],
    k_pos: Int[Tensor, "b T"],
    scale: float,
) -> tuple[Float[Tensor, "B T T"], Float[Tensor, "B T"]]:
    """Return -sum_(j < m < i) relu(scale q_m k_j) for each query i and key j, and the positive sum over all m.

    The tokens must be a whole sequence in order of positions. Keys at position 0 have sums of 0. Padding also has
    position 0, so it adds nothing.
    """
    result: tuple[Tensor, Tensor] = SelectedSums.apply(q, k, q_pos, k_pos, scale)  # type: ignore[no-untyped-call]
    return result


class SelectedSums(torch.autograd.Function):
    """Autograd function of `selected_sums`."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        rows, queries = q.shape[:2]
        sums, total, saved = q.new_empty(rows, queries, queries), q.new_zeros(rows, queries), list[Tensor]()
        for block in blocks(q):
            taken = _taken(q, k, q_pos, k_pos, scale, block)
            before, block_sums = total[block.rows, : block.last], sums[block.rows, block.first : block.last]
            triangle = _ones(taken).tril_(-1).expand(len(taken), -1, -1)  # sums over m < i of the block
            torch.baddbmm(before[:, None], triangle, taken, beta=-1, alpha=-1, out=block_sums[..., : block.last])
            block_sums[..., block.last :] = 0
            before += taken.sum(1)
            if sums.numel() <= MAX_KEPT:
                saved.append(taken)
        ctx.save_for_backward(q, k, q_pos, k_pos, *saved)
        ctx.scale = scale
        return sums, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, dtotal: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q and k, from the last block of queries to the first.

        `dlater` is the gradient of the selection scores [B, T] by the total and by the sums of all later blocks.
        """
        q, k, q_pos, k_pos, *saved = ctx.saved_tensors
        dq, dk, dlater = torch.empty_like(q), torch.empty_like(k), dtotal.clone()
        for block in reversed(list(blocks(q))):
            rows, queries, seen = block.rows, slice(block.first, block.last), slice(block.last)
            taken = saved.pop() if saved else _taken(q, k, q_pos, k_pos, ctx.scale, block)
            block_grad, from_later = grad[rows, queries, seen], dlater[rows, seen]
            triangle = _ones(taken).triu_(1).expand(len(taken), -1, -1)  # m is in the sums of i > m
            dtaken = torch.baddbmm(from_later[:, None], triangle, block_grad, alpha=-1)
            from_later -= block_grad.sum(1)
            dtaken = torch.ops.aten.threshold_backward(dtaken, taken, 0)  # of relu, in one pass
            dq[rows, queries] = scaled_bmm(dtaken, k[rows, seen], ctx.scale)
            block_dk = scaled_bmm(dtaken.transpose(1, 2), q[rows, queries], ctx.scale)
            if block.last == q.shape[1]:  # the first block of the backward pass covers all keys
                dk[rows] = block_dk
            else:
                dk[rows, seen] += block_dk
        return dq, dk, None, None, None


class SumBlock(NamedTuple):
    """Queries `first` to `last` (exclusive) of some rows."""

    rows: slice
    first: int
    last: int


def blocks(q: Float[Tensor, "B T D"]) -> Iterator[SumBlock]:
    """Yield the blocks of a call, for each slice of rows in the order of queries."""
    rows, queries = q.shape[:2]
    depth = max(1, CHUNK_SCORES // (min(BLOCK_QUERIES, queries) * queries))
    for row in range(0, rows, depth):
        for first in range(0, queries, BLOCK_QUERIES):
            yield SumBlock(slice(row, row + depth), first, min(first + BLOCK_QUERIES, queries))


def _ones(taken: Float[Tensor, "n t s"]) -> Float[Tensor, "t t"]:
    return taken.new_ones(taken.shape[1], taken.shape[1])


def _taken(
    q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, scale: float, block: SumBlock
) -> Float[Tensor, "n t s"]:
    """Return the selection scores of the queries of a block for keys up to `block.last`; 0 if not before the query."""
    rows, queries, seen = block.rows, slice(block.first, block.last), slice(block.last)
    mask_rows = slice(None) if len(q_pos) == 1 else rows
    q_at, k_at = q_pos[mask_rows, queries, None], k_pos[mask_rows, None, seen]
    hidden = q.new_zeros(()).masked_fill((k_at == 0) | (k_at >= q_at), -torch.inf)
    q, k = q[rows, queries], k[rows, seen]
    return torch.baddbmm(hidden.expand(len(q), -1, -1), q, k.transpose(1, 2), alpha=scale).relu_()
