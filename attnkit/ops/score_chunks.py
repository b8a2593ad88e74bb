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

CHUNK = 2**18
"""Number of scores of a chunk, over all maps; in smaller chunks the overhead of torch's calls dominates."""
PARTS, SHORTEST = 2, 32
"""A causal sequence is split into at least PARTS chunks, but not into chunks of fewer than SHORTEST queries: early
queries need fewer keys."""
LONG_HEIGHT = 32
"""Minimum number of queries of a chunk, even above CHUNK scores: each chunk adds to the gradients of all keys."""
KEPT = 2**24
"""Maximum number of scores of a call, over all maps, for which the tensors of the backward pass are kept (up to 64 MB
a map in float32), which takes 10 to 20 % less time than recomputing them."""
SIGHTS = 2**22
"""Maximum number of mask elements of a call that are kept between chunks and for the backward pass."""
LEAST = 2**17
"""Minimum number of scores of a call for which chunks are faster than whole maps."""


class ScoreChunk(NamedTuple):
    """A block of queries of some rows, in all heads, and the leading keys that they may attend to."""

    rows: slice
    queries: slice
    seen: slice
    first: bool = False
    """Whether this is the first chunk of its rows, whose keys include those of all other chunks."""


class Hidden(NamedTuple):
    """The mask of a call."""

    allowed: Callable[[ScoreChunk], Bool[Tensor, "b 1 t s"] | None]
    """Function of a chunk: True where a key is visible, None if all are. It is called chunk by chunk, since a mask of
    T x S elements is larger than anything else that is kept of a long sequence."""
    alike: bool
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
    bears_empty: ClassVar[bool] = False
    """Whether queries without visible keys get weights of 0; softmax would give NaN."""

    @abstractmethod
    def weigh(self, scores: Sequence[Float[Tensor, "n H t s"]], chunk: ScoreChunk) -> tuple[Tensor, ...]:
        """Return the weights [n, H, t, s], then any other tensors that `slopes` needs.

        `scores` has one tensor a map and may be overwritten. Each returned tensor is new or one of `scores`.
        """

    @abstractmethod
    def slopes(self, kept: Sequence[Tensor], grad: Float[Tensor, "n H t s"]) -> Sequence[Float[Tensor, "n H t s"]]:
        """Return the gradients of the score maps; `kept` is the result of `weigh`, `grad` the gradient of the weights.

        Only `grad` may be overwritten.
        """

    def parameter_gradient(self) -> Tensor | None:
        """Return the gradient of the parameter, accumulated by `slopes` since the last call of this method."""
        return None


def in_chunks(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether chunks are faster for queries [B, *, T, D], keys and values [B, *, S, *]."""
    kinds = {x.dtype for x in (q, k, v)}
    wide = len(kinds) == 1 and kinds <= {torch.float32, torch.float64}
    scores = v.shape[0] * v.shape[1] * q.shape[2] * k.shape[2]
    return wide and q.shape[2] > 1 and scores >= LEAST and usable(q, k, v)


def chunked_mix(
    weighing: Weighing,
    hidden: Hidden,
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
    plan = ChunkPlan(weighing, hidden, len(q), q[0], v.shape[2])
    y: Tensor = ChunkedMix.apply(plan, scale, parameter, bias, v, *q, *k)  # type: ignore[no-untyped-call]
    return y


def softmax_slopes(weights: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of the scores from their softmax (`weights`) and its gradient."""
    slopes: Tensor = torch.ops.aten._softmax_backward_data(grad, weights, -1, weights.dtype)
    return slopes


class Softmax(Weighing):
    """The softmax of one score map, for mechanisms that only add a bias."""

    def weigh(self, scores: Sequence[Tensor], chunk: ScoreChunk) -> tuple[Tensor]:
        return (scores[0].softmax(-1),)

    def slopes(self, kept: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
        return [softmax_slopes(kept[0], grad)]


class Sight(NamedTuple):
    """The mask of a chunk."""

    added: Float[Tensor, "b 1 t s"] | None
    """Term added to scores: -inf at hidden keys, but not for queries without visible keys."""
    shown: Bool[Tensor, "b 1 t 1"] | None
    """False for queries without visible keys; None: there are none."""


class ChunkPlan:
    """The chunks of a call and their masks."""

    def __init__(self, weighing: Weighing, hidden: Hidden, maps: int, q: Tensor, keys: int) -> None:
        self.weighing, self.hidden, self.maps, self.kind = weighing, hidden, maps, q.dtype
        rows, heads, queries = q.shape[:3]
        self.heads = heads
        self.keeps = torch.is_grad_enabled() and maps * rows * heads * queries * keys <= KEPT
        room = max(1, CHUNK // (maps * heads * keys))  # queries of a chunk, over its rows
        # above 1, so that only the last chunk may have a single query: `Scored.allowed` assumes this
        height = min(queries, max(room, LONG_HEIGHT))
        if hidden.causal:
            height = min(height, max(SHORTEST, -(-queries // PARTS)))
        depth = max(1, room // height)
        self.rows = [slice(row, min(row + depth, rows)) for row in range(0, rows, depth)]
        self.blocks = list[tuple[slice, slice]]()  # last queries first: `add_to` overwrites, then adds
        for first in reversed(range(0, queries, height)):
            last = min(first + height, queries)
            self.blocks.append((slice(first, last), slice(last if hidden.causal else keys)))
        self._alike = hidden.alike and (hidden.offset is None or len(hidden.offset) == 1)
        self._remembers = (1 if self._alike else rows) * queries * keys <= SIGHTS
        self._sights = dict[tuple[int, int], Sight]()

    def of_rows(self, rows: slice) -> Iterator[tuple[ScoreChunk, Sight]]:
        """Yield the chunks of some rows with their masks."""
        for number, block in enumerate(self.blocks):
            chunk, key = ScoreChunk(rows, *block, first=number == 0), (0 if self._alike else rows.start, number)
            sight = self._sights.get(key) or self._sight(chunk)
            if self._remembers:
                self._sights[key] = sight
            yield chunk, sight

    def _sight(self, chunk: ScoreChunk) -> Sight:
        allowed, offset = self.hidden.allowed(chunk), _part(self.hidden.offset, chunk)
        if allowed is None:
            return Sight(offset, None)
        shown = None
        if not self.weighing.bears_empty:
            shown = allowed.any(-1, keepdim=True)
            if shown.all():
                shown = None
            else:
                allowed = allowed | ~shown  # softmax of a row of -inf is NaN; the output is masked by `shown`
        zero = torch.zeros((), dtype=self.kind) if offset is None else offset
        return Sight(zero.masked_fill(~allowed, -torch.inf), shown)

    def weights(
        self,
        both: Sequence[Float[Tensor, "N L D"]],
        bias: Tensor | None,
        scale: float,
        chunk: ScoreChunk,
        sight: Sight,
    ) -> tuple[Tensor, ...]:
        """Return the result of `Weighing.weigh` for a chunk; `both` is all queries and all keys of its rows."""
        scores = []
        for query, key in zip(both[: self.maps], both[self.maps :], strict=True):
            one = product(query[:, chunk.queries], key[:, chunk.seen].transpose(1, 2), scale)
            scores.append(torch.unflatten(one, 0, (-1, self.heads)))
        for one in scores[: self.weighing.masked]:
            if sight.added is not None:
                one += sight.added
            if bias is not None:
                one += bias_of(bias, chunk)
        return self.weighing.weigh(scores, chunk)


def _part(x: Tensor | None, chunk: ScoreChunk) -> Tensor | None:
    if x is None:
        return None
    return x[:, :, chunk.queries] if len(x) == 1 else x[chunk.rows, :, chunk.queries]


class ChunkedMix(torch.autograd.Function):
    """Autograd function of `chunked_mix`; `qk` is all queries, then all keys."""

    @staticmethod
    def forward(
        ctx: Any, plan: ChunkPlan, scale: float, parameter: Tensor | None, bias: Tensor | None, v: Tensor, *qk: Tensor
    ) -> Tensor:
        y, kept = beside(v, qk[0].shape[2]), list[Tensor]()
        for rows in plan.rows:
            values, *both = (stacked(x[rows]) for x in (v, *qk))
            for chunk, sight in plan.of_rows(rows):
                found = plan.weights(both, bias, scale, chunk, sight)
                if plan.keeps:
                    kept += found
                weights = found[0] if sight.shown is None else found[0] * sight.shown
                answers = torch.bmm(weights.flatten(0, 1), values[:, chunk.seen])
                y[rows, :, chunk.queries] = torch.unflatten(answers, 0, (-1, plan.heads))
        ctx.save_for_backward(bias, v, *qk, *kept)
        ctx.given = plan, scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of parameter, bias, values, all queries and all keys.

        With weights P, output y = P v and dy its gradient: dv = P^T dy, dP = dy v^T. `slopes` gives the gradient dS of
        each score map, and scale q k^T + bias then dq = scale dS k, dk = scale dS^T q and, summed, the bias.
        """
        plan, scale = ctx.given
        weighing, maps, heads = plan.weighing, plan.maps, plan.heads
        bias, *saved = ctx.saved_tensors
        v, *qk = saved[: 1 + 2 * maps]
        kept = iter(saved[1 + 2 * maps :])
        to_bias = torch.zeros_like(bias) if ctx.needs_input_grad[3] else None
        totals = [beside(x, x.shape[2]) for x in (v, *qk)]
        for rows in plan.rows:
            dy, values, *both = (stacked(x[rows]) for x in (grad, v, *qk))
            sums = [torch.empty_like(x) for x in (values, *both)]
            for chunk, sight in plan.of_rows(rows):
                if plan.keeps:
                    found = tuple(next(kept) for _ in range(weighing.tensors))
                else:
                    found = plan.weights(both, bias, scale, chunk, sight)
                own = dy[:, chunk.queries]
                if sight.shown is not None:  # outputs of 0 have no gradient
                    own = (torch.unflatten(own, 0, (-1, heads)) * sight.shown).flatten(0, 1)
                add_to(sums[0], torch.bmm(found[0].flatten(0, 1).transpose(1, 2), own), chunk)
                above = torch.bmm(own, values[:, chunk.seen].transpose(1, 2))
                slopes = weighing.slopes(found, torch.unflatten(above, 0, (-1, heads)))
                if to_bias is not None:
                    into = bias_of(to_bias, chunk)
                    for slope in slopes[: weighing.masked]:
                        into += slope.sum_to_size(into.shape)
                for number, slope in enumerate(slopes):
                    slope = slope.flatten(0, 1)
                    query, key = both[number][:, chunk.queries], both[maps + number][:, chunk.seen]
                    sums[1 + number][:, chunk.queries] = product(slope, key, scale)
                    add_to(sums[1 + maps + number], product(slope.transpose(1, 2), query, scale), chunk)
            for total, one in zip(totals, sums, strict=True):
                total[rows] = torch.unflatten(one, 0, (-1, heads))
        return None, None, weighing.parameter_gradient(), to_bias, *totals


def stacked(x: Float[Tensor, "n H T D"]) -> Float[Tensor, "n*H T D"]:
    """Return x with rows and heads as one batch dimension, contiguous for `torch.bmm`."""
    return x.contiguous().flatten(0, 1)


def beside(x: Float[Tensor, "B H S E"], length: int) -> Float[Tensor, "B H T E"]:
    """Return an uninitialized tensor of `length` tokens, in memory [B, T, H, E] as the projections of a layer."""
    return x.new_empty(x.shape[0], length, x.shape[1], x.shape[3]).transpose(1, 2)


def product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return scale a b, in one call."""
    shape = a.shape[0], a.shape[1], b.shape[2]
    return torch.baddbmm(a.new_empty(()).expand(shape), a, b, beta=0, alpha=scale)


def bias_of(bias: Float[Tensor, "b h T S"], chunk: ScoreChunk) -> Float[Tensor, "b h t s"]:
    """Return a view of the bias of a chunk."""
    part = _part(bias, chunk)
    assert part is not None
    return part[..., chunk.seen]


def add_to(total: Float[Tensor, "N S D"], part: Float[Tensor, "N s D"], chunk: ScoreChunk) -> None:
    """Accumulate the gradients of the keys of a chunk; the first chunk initializes all of them."""
    if chunk.first:
        total.copy_(part)
    else:
        total[:, chunk.seen] += part
