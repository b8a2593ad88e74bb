"""Attention in chunks of scores that fit into a CPU's caches, with hand-written gradients.

With whole attention maps [B, H, T, S], each operation reads and writes the map in main memory, forward and backward.
Here scores, weights and intermediate results are computed for a few rows and queries at a time. The tensors that
gradients need are kept, or recomputed in the backward pass if the maps are large.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnkit.ops.autograd import once_differentiable
from attnkit.ops.fast_cpu import usable

CHUNK_SCORES = 2**18
"""Number of scores of a chunk, over all maps; in smaller chunks the overhead of torch's calls dominates."""
CAUSAL_CHUNKS, MIN_CAUSAL_QUERIES = 2, 32
"""A causal sequence is split into at least CAUSAL_CHUNKS chunks, unless they have fewer than MIN_CAUSAL_QUERIES
queries: early queries need fewer keys."""
MIN_QUERIES = 32
"""Minimum number of queries of a chunk, even above CHUNK_SCORES: each chunk adds to the gradients of all keys."""
MAX_KEPT_SCORES = 2**24
"""Maximum number of scores of a call, over all maps, for which the tensors of the backward pass are kept (up to 64 MB
per map in float32), which takes 10 to 20 % less time than recomputing them."""
MAX_KEPT_MASK = 2**22
"""Maximum number of mask elements of a call that are kept between chunks and for the backward pass."""
MIN_SCORES = 2**17
"""Minimum number of scores of a call for which chunks are faster than whole maps."""


class ScoreChunk(NamedTuple):
    """A block of queries of some rows, in all heads, and the leading keys that they may attend to."""

    rows: slice
    queries: slice
    seen: slice
    first: bool = False
    """Whether this is the first chunk of its rows, whose keys include those of all other chunks."""


class ScoreMask(NamedTuple):
    """The mask of a call."""

    allowed: Callable[[ScoreChunk], Bool[Tensor, "b 1 t s"] | None]
    """Function of a chunk: True where a key is visible, None if all are. It is called chunk by chunk, since a mask of
    T x S elements is larger than anything else that is kept of a long sequence."""
    same_rows: bool
    """Whether the mask is the same for all rows."""
    causal: bool = False
    """Whether keys in later columns than a query are hidden from it; then T = S."""
    offset: Float[Tensor, "b 1 T 1"] | None = None
    """Offset of all scores of a query."""


class Weighing(ABC):
    """Attention weights as a function of scores, chunk by chunk, with the gradient."""

    masked: ClassVar[int] = 1
    """Number of leading score maps to which the bias is added, and the mask (-inf at hidden keys)."""
    tensors: ClassVar[int] = 1
    """Number of tensors that `weigh` returns."""
    handles_empty: ClassVar[bool] = False
    """Whether queries without visible keys get weights of 0; softmax would give NaN."""

    @abstractmethod
    def weigh(self, scores: Sequence[Float[Tensor, "n H t s"]], chunk: ScoreChunk) -> tuple[Tensor, ...]:
        """Return the weights [n, H, t, s], then any other tensors that `score_gradients` needs.

        `scores` has one tensor per map and may be overwritten. Each returned tensor is new or one of `scores`.
        """

    @abstractmethod
    def score_gradients(
        self, kept: Sequence[Tensor], grad: Float[Tensor, "n H t s"]
    ) -> Sequence[Float[Tensor, "n H t s"]]:
        """Return the gradients of the score maps; `kept` is the result of `weigh`, `grad` the gradient of the weights.

        Only `grad` may be overwritten.
        """

    def parameter_gradient(self) -> Tensor | None:
        """Return the gradient of the parameter, accumulated by `score_gradients` since the last call."""
        return None


def in_chunks(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether chunks are faster for queries [B, *, T, D], keys and values [B, *, S, *]."""
    dtypes = {x.dtype for x in (q, k, v)}
    supported = len(dtypes) == 1 and dtypes <= {torch.float32, torch.float64}
    scores = v.shape[0] * v.shape[1] * q.shape[2] * k.shape[2]
    return supported and q.shape[2] > 1 and scores >= MIN_SCORES and usable(q, k, v)


def chunked_mix(
    weighing: Weighing,
    mask: ScoreMask,
    scale: float,
    q: Sequence[Float[Tensor, "B H T D"]],
    k: Sequence[Float[Tensor, "B H S D"]],
    v: Float[Tensor, "B H S E"],
    bias: Float[Tensor, "b h T S"] | None = None,
    parameter: Tensor | None = None,
) -> Float[Tensor, "B H T E"]:
    """Return the weights that `weighing` computes from score maps, one scale q k^T + bias for each q and k, times v.

    The output is 0 for a query without visible keys. `weighing` must not be shared with another call.
    """
    plan = ChunkPlan(weighing, mask, len(q), q[0], v.shape[2])
    y: Tensor = ChunkedMix.apply(plan, scale, parameter, bias, v, *q, *k)  # type: ignore[no-untyped-call]
    return y


def softmax_gradient(weights: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of the scores from their softmax (`weights`) and its gradient."""
    slopes: Tensor = torch.ops.aten._softmax_backward_data(grad, weights, -1, weights.dtype)
    return slopes


class Softmax(Weighing):
    """The softmax of one score map, for mechanisms that only add a bias."""

    def weigh(self, scores: Sequence[Tensor], chunk: ScoreChunk) -> tuple[Tensor]:
        return (scores[0].softmax(-1),)

    def score_gradients(self, kept: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
        return [softmax_gradient(kept[0], grad)]


class ChunkMask(NamedTuple):
    """The mask of a chunk."""

    added: Float[Tensor, "b 1 t s"] | None
    """Term added to scores: -inf at hidden keys, but not for queries without visible keys."""
    shown: Bool[Tensor, "b 1 t 1"] | None
    """False for queries without visible keys; None: there are none."""


class ChunkPlan:
    """The chunks of a call and their masks."""

    def __init__(self, weighing: Weighing, mask: ScoreMask, maps: int, q: Tensor, keys: int) -> None:
        self.weighing, self.mask, self.maps, self.dtype = weighing, mask, maps, q.dtype
        rows, heads, queries = q.shape[:3]
        self.heads = heads
        self.saves_tensors = torch.is_grad_enabled() and maps * rows * heads * queries * keys <= MAX_KEPT_SCORES
        budget = max(1, CHUNK_SCORES // (maps * heads * keys))  # queries of a chunk, over its rows
        # above 1, so that only the last chunk may have a single query: `Scored.allowed` assumes this
        height = min(queries, max(budget, MIN_QUERIES))
        if mask.causal:
            height = min(height, max(MIN_CAUSAL_QUERIES, -(-queries // CAUSAL_CHUNKS)))
        depth = max(1, budget // height)
        self.rows = [slice(row, min(row + depth, rows)) for row in range(0, rows, depth)]
        self.blocks = list[tuple[slice, slice]]()  # last queries first, for `accumulate`
        for first in reversed(range(0, queries, height)):
            last = min(first + height, queries)
            self.blocks.append((slice(first, last), slice(last if mask.causal else keys)))
        self._same_rows = mask.same_rows and (mask.offset is None or len(mask.offset) == 1)
        self._keeps_masks = (1 if self._same_rows else rows) * queries * keys <= MAX_KEPT_MASK
        self._masks = dict[tuple[int, int], ChunkMask]()

    def of_rows(self, rows: slice) -> Iterator[tuple[ScoreChunk, ChunkMask]]:
        """Yield the chunks of some rows with their masks."""
        for number, block in enumerate(self.blocks):
            chunk, key = ScoreChunk(rows, *block, first=number == 0), (0 if self._same_rows else rows.start, number)
            mask = self._masks.get(key) or self._chunk_mask(chunk)
            if self._keeps_masks:
                self._masks[key] = mask
            yield chunk, mask

    def _chunk_mask(self, chunk: ScoreChunk) -> ChunkMask:
        allowed = self.mask.allowed(chunk)
        offset = None if self.mask.offset is None else _rows_of(self.mask.offset, chunk)
        if allowed is None:
            return ChunkMask(offset, None)
        shown = None
        if not self.weighing.handles_empty:
            shown = allowed.any(-1, keepdim=True)
            if shown.all():
                shown = None
            else:
                allowed = allowed | ~shown  # softmax of a row of -inf is NaN; the output is masked by `shown`
        zero = torch.zeros((), dtype=self.dtype) if offset is None else offset
        return ChunkMask(zero.masked_fill(~allowed, -torch.inf), shown)

    def weights(
        self,
        qk: Sequence[Float[Tensor, "N L D"]],
        bias: Tensor | None,
        scale: float,
        chunk: ScoreChunk,
        mask: ChunkMask,
    ) -> tuple[Tensor, ...]:
        """Return the result of `Weighing.weigh` for a chunk; `qk` is all queries and all keys of its rows."""
        scores = []
        for query, key in zip(qk[: self.maps], qk[self.maps :], strict=True):
            score_map = scaled_bmm(query[:, chunk.queries], key[:, chunk.seen].transpose(1, 2), scale)
            scores.append(torch.unflatten(score_map, 0, (-1, self.heads)))
        for score_map in scores[: self.weighing.masked]:
            if mask.added is not None:
                score_map += mask.added
            if bias is not None:
                score_map += bias_of_chunk(bias, chunk)
        return self.weighing.weigh(scores, chunk)


def _rows_of(x: Float[Tensor, "b h T *n"], chunk: ScoreChunk) -> Float[Tensor, "b h t *n"]:
    return x[:, :, chunk.queries] if len(x) == 1 else x[chunk.rows, :, chunk.queries]


class ChunkedMix(torch.autograd.Function):
    """Autograd function of `chunked_mix`; `qk` is all queries, then all keys."""

    @staticmethod
    def forward(
        ctx: Any, plan: ChunkPlan, scale: float, parameter: Tensor | None, bias: Tensor | None, v: Tensor, *qk: Tensor
    ) -> Tensor:
        y, kept = empty_output(v, qk[0].shape[2]), list[Tensor]()
        for rows in plan.rows:
            values, *qk_rows = (fold_heads(x[rows]) for x in (v, *qk))
            for chunk, mask in plan.of_rows(rows):
                tensors = plan.weights(qk_rows, bias, scale, chunk, mask)
                if plan.saves_tensors:
                    kept += tensors
                weights = tensors[0] if mask.shown is None else tensors[0] * mask.shown
                outputs = torch.bmm(weights.flatten(0, 1), values[:, chunk.seen])
                y[rows, :, chunk.queries] = torch.unflatten(outputs, 0, (-1, plan.heads))
        ctx.save_for_backward(bias, v, *qk, *kept)
        ctx.plan, ctx.scale = plan, scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of parameter, bias, values, all queries and all keys.

        With weights P, output y = P v and dy its gradient: dv = P^T dy, dP = dy v^T. `score_gradients` gives the
        gradient dS of each score map, and scale q k^T + bias then dq = scale dS k, dk = scale dS^T q and, summed, the
        bias.
        """
        plan, scale = ctx.plan, ctx.scale
        weighing, maps, heads = plan.weighing, plan.maps, plan.heads
        bias, *saved = ctx.saved_tensors
        v, *qk = saved[: 1 + 2 * maps]
        kept = iter(saved[1 + 2 * maps :])
        dbias = torch.zeros_like(bias) if ctx.needs_input_grad[3] else None
        totals = [empty_output(x, x.shape[2]) for x in (v, *qk)]
        for rows in plan.rows:
            dy, values, *qk_rows = (fold_heads(x[rows]) for x in (grad, v, *qk))
            sums = [torch.empty_like(x) for x in (values, *qk_rows)]
            for chunk, mask in plan.of_rows(rows):
                if plan.saves_tensors:
                    tensors = tuple(next(kept) for _ in range(weighing.tensors))
                else:
                    tensors = plan.weights(qk_rows, bias, scale, chunk, mask)
                dy_chunk = dy[:, chunk.queries]
                if mask.shown is not None:  # outputs of 0 have no gradient
                    dy_chunk = (torch.unflatten(dy_chunk, 0, (-1, heads)) * mask.shown).flatten(0, 1)
                accumulate(sums[0], torch.bmm(tensors[0].flatten(0, 1).transpose(1, 2), dy_chunk), chunk)
                dweights = torch.bmm(dy_chunk, values[:, chunk.seen].transpose(1, 2))
                slopes = weighing.score_gradients(tensors, torch.unflatten(dweights, 0, (-1, heads)))
                if dbias is not None:
                    dbias_chunk = bias_of_chunk(dbias, chunk)
                    for slope in slopes[: weighing.masked]:
                        dbias_chunk += slope.sum_to_size(dbias_chunk.shape)
                for number, slope in enumerate(slopes):
                    slope = slope.flatten(0, 1)
                    query, key = qk_rows[number][:, chunk.queries], qk_rows[maps + number][:, chunk.seen]
                    sums[1 + number][:, chunk.queries] = scaled_bmm(slope, key, scale)
                    accumulate(sums[1 + maps + number], scaled_bmm(slope.transpose(1, 2), query, scale), chunk)
            for total, part in zip(totals, sums, strict=True):
                total[rows] = torch.unflatten(part, 0, (-1, heads))
        return None, None, weighing.parameter_gradient(), dbias, *totals


def fold_heads(x: Float[Tensor, "n H T D"]) -> Float[Tensor, "n*H T D"]:
    """Return x with rows and heads as one batch dimension, contiguous for `torch.bmm`."""
    return x.contiguous().flatten(0, 1)


def empty_output(x: Float[Tensor, "B H S E"], length: int) -> Float[Tensor, "B H T E"]:
    """Return an uninitialized tensor of `length` tokens, in memory [B, T, H, E] as the projections of a layer."""
    return x.new_empty(x.shape[0], length, x.shape[1], x.shape[3]).transpose(1, 2)


def scaled_bmm(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return scale a b, in one call."""
    shape = a.shape[0], a.shape[1], b.shape[2]
    return torch.baddbmm(a.new_empty(()).expand(shape), a, b, beta=0, alpha=scale)


def bias_of_chunk(bias: Float[Tensor, "b h T S"], chunk: ScoreChunk) -> Float[Tensor, "b h t s"]:
    """Return a view of the bias of a chunk."""
    return _rows_of(bias, chunk)[..., chunk.seen]


def accumulate(total: Float[Tensor, "N S D"], chunk_grad: Float[Tensor, "N s D"], chunk: ScoreChunk) -> None:
    """Accumulate gradients of keys or values; the first chunk of its rows has all keys and initializes `total`."""
    if chunk.first:
        total.copy_(chunk_grad)
    else:
        total[:, chunk.seen] += chunk_grad
