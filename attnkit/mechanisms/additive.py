"""Additive attention: A = softmax(w_v^T tanh(W_q q + W_k k)).

A hidden layer of u tanh units scores every pair of query and key. Each head has its own W_q and W_k [D, u] and w_v
[u], beside the projections of the layer; `hidden` is u, by default the head width. Parameters per head: 2 D u + u. The
T x S x u hidden units are never in memory at once: they are computed in blocks of queries, and recomputed in the
backward pass. Source: Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and Translate",
appendix A.1.2.

Worked number: D = u = 1, W_q = W_k = 1, w_v = ln 3 / tanh 1, q = 1 and keys -1, 0: tanh 0 = 0 and tanh 1 give the
scores 0 and ln 3, so the weights are 1/4, 3/4.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnkit.attention import Mask, Scored, Shape, at_least, one_head
from attnkit.attention.position_tables import per_head, xavier
from attnkit.ops.autograd import once_differentiable
from attnkit.ops.linear_attention import widest

BLOCK, LARGE_BLOCK = 2**19, 2**25
"""Number of hidden units in a block: on a CPU what the second-level caches hold, elsewhere what fills the device."""
PARTS, SHORTEST = 8, 8
"""Number of blocks into which the queries of causal sequences are split on a CPU, as the first blocks need fewer keys,
and minimum number of queries in a block."""
REACH = 40.0
"""Maximum |x| of the factored form: e^(2 x) is then neither 0 nor infinite in float32, so that no product is NaN."""


class QueryBlock(NamedTuple):
    """Hidden units of a block of rows and queries, in a buffer that the next block reuses."""

    rows: slice
    queries: slice
    seen: slice
    """The first keys, which contain all keys that these queries may attend to."""
    units: Float[Tensor, "b t s u"]
    """sigmoid(2 (left + right)), which is (1 + tanh(left + right)) / 2."""


def hidden_units(
    left: Float[Tensor, "B T u"], right: Float[Tensor, "B S u"], causal: bool = False
) -> Iterator[QueryBlock]:
    """Yield the hidden units of one head block by block; if `causal`, without the keys behind a block.

    On a CPU they are computed as 1 / (1 + e^(-2 left) e^(-2 right)), which needs no exponential per unit, if no
    exponent is too large, otherwise as sigmoids; torch's tanh takes ten times as long there.
    """
    rows, queries, width = left.shape
    keys = right.shape[1]
    if left.numel() == 0 or keys == 0:
        return
    cpu = left.device.type == "cpu"
    factored = cpu and all(bool(x.abs().amax() <= REACH) for x in (left, right) if x.numel())
    left, right = ((-2 * x).exp() if factored else 2 * x for x in (left, right))
    left, right = left[:, :, None], right[:, None]  # [B, T, 1, u] and [B, 1, S, u]
    max_queries = max(1, (BLOCK if cpu else LARGE_BLOCK) // (keys * width))
    block_queries = min(max_queries, queries)
    if causal and cpu:
        block_queries = min(block_queries, max(SHORTEST, -(-queries // PARTS)))
    block_rows = max(1, min(rows, max_queries // block_queries))
    buffer, one = left.new_empty(block_rows * block_queries * keys * width), left.new_ones(())
    for row in range(0, rows, block_rows):
        for first in range(0, queries, block_queries):
            part = slice(row, row + block_rows), slice(first, first + block_queries)
            seen = slice(min(first + block_queries, queries) if causal else keys)
            left_part, right_part = left[part], right[part[0], :, seen]
            shape = *left_part.shape[:2], seen.stop, width
            units = buffer[: math.prod(shape)].view(shape)
            if factored:
                torch.addcmul(one, left_part, right_part, out=units).reciprocal_()
            else:
                torch.add(left_part, right_part, out=units).sigmoid_()
            yield QueryBlock(*part, seen, units)


class TanhScores(torch.autograd.Function):
    """sum_u weight_u tanh(left_tu + right_su), without keeping the hidden units."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, weight: Tensor, causal: bool = False) -> Tensor:
        """Return the scores [H, B, T, S] of left [H, B, T, u], right [H, B, S, u] and weight [H, u].

        If `causal`, T = S, and scores of keys behind a block of queries are 0.
        """
        ctx.save_for_backward(left, right, weight)
        ctx.causal = causal
        shape = left.shape[1], left.shape[0], left.shape[2], right.shape[2]
        scores = left.new_zeros(shape).transpose(0, 1)  # the memory layout that softmax reads
        for head, w in enumerate(weight):
            for rows, queries, seen, units in hidden_units(left[head], right[head], causal):
                sums = torch.mv(units.flatten(0, 2), 2 * w) - w.sum()  # tanh = 2 unit - 1
                scores[head, rows, queries, seen] = sums.view(units.shape[:3])
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "H B T S"]) -> tuple[Tensor | None, ...]:
        """Compute the gradients, with tanh' = 4 h (1 - h) for h = (1 + tanh) / 2."""
        left, right, weight = ctx.saved_tensors
        grad_left, grad_right, grad_weight = map(torch.zeros_like, (left, right, weight))
        buffer = None
        for head in range(len(weight)):
            for rows, queries, seen, units in hidden_units(left[head], right[head], ctx.causal):
                g = grad[head, rows, queries, seen]
                grad_weight[head] += 2 * torch.mv(units.flatten(0, 2).t(), g.flatten()) - g.sum()
                if buffer is None or buffer.numel() < units.numel():
                    buffer = torch.empty_like(units).flatten()
                slopes = buffer[: units.numel()].view_as(units)
                torch.addcmul(units, units, units, value=-1, out=slopes).mul_(g.unsqueeze(-1))
                grad_left[head, rows, queries] = slopes.sum(2)  # a query is in a single block
                grad_right[head, rows, seen] += slopes.sum(1)  # a key may be in all blocks of its row
        factor = 4 * weight[:, None, None]
        return grad_left * factor, grad_right * factor, grad_weight, None


class Additive(Scored):
    """softmax(w_v^T tanh(W_q q + W_k k)) v; cost T*S*u, memory of one block."""

    def __init__(self, shape: Shape, *, hidden: int | None = None) -> None:
        super().__init__(shape)
        units = shape.head_width if hidden is None else at_least("additive", "hidden", hidden)
        self.query = nn.Parameter(xavier(shape.heads, shape.head_width, units))
        self.key = nn.Parameter(xavier(shape.heads, shape.head_width, units))
        self.out = nn.Parameter(xavier(shape.heads, units, 1).squeeze(-1))

    def cached_keys(self, k: Float[Tensor, "B H S D"]) -> Float[Tensor, "B H S u"]:
        """Return W_k k."""
        return per_head(k, self.key, None)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "B H T S"]:
        """Return w_v^T tanh(W_q q + W_k k), given W_k k."""
        inputs = per_head(q, self.query, None), k, self.out
        # at least float32: 16 bits could not distinguish close scores
        left, right, weight = (x.to(widest(q.dtype)) for x in inputs)
        if torch.compiler.is_exporting():  # blocks depend on values
            hidden = (left[:, :, :, None] + right[:, :, None]).tanh()  # [B, H, T, S, u]
            return (hidden @ weight[:, None, :, None])[..., 0]
        if left.shape[2] == 1 and not torch.is_grad_enabled():  # [B, H, S, u], as large as the keys
            units = torch.add(2 * left, right, alpha=2).sigmoid_().mul_(2 * weight[:, None])
            return (units.sum(-1) - weight.sum(-1)[:, None])[:, :, None]  # [B, H, 1, S]
        scores: Tensor = TanhScores.apply(  # type: ignore[no-untyped-call]
            left.transpose(0, 1), right.transpose(0, 1), weight, mask.causal and left.shape[2] == right.shape[2]
        )
        return scores.transpose(0, 1)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=2)).double()
        with torch.no_grad():
            mechanism.query.fill_(1)
            mechanism.key.fill_(1)
            mechanism.out.fill_(math.log(3) / math.tanh(1))
        q, k = one_head((1,)), one_head((-1,), (0,))
        mask = Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1)
        return mechanism.weights(q, k, k, mask), one_head((0.25, 0.75))
