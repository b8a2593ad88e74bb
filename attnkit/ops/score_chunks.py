"""Attention in chunks of scores that stay in a CPU's caches, with gradients written by hand.

A map [B, H, T, S] passes through memory for each operation on it, forward and backward.  Here
scores, weights and what is between them are made for a few rows at a time.  What their gradients
need is kept, or of large maps made again in the backward pass.
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
"""Scores at once, over all maps: in smaller chunks the calls of torch take longer than the sums."""
PARTS, SHORTEST = 2, 32
"""Causal texts are cut into so many chunks of queries, none shorter, as first ones need fewer keys."""
LONG_HEIGHT = 32
"""Queries at once of long texts, however many scores: each chunk adds to the gradients of all keys."""
KEPT = 2**24
"""Scores of a call, over all maps, up to which what gradients need is kept: up to 64 MB a map in
float32, which takes a tenth to a fifth less time than making it again."""
SIGHTS = 2**22
"""Numbers that say which keys are seen, up to which they are kept between chunks and for gradients."""
LEAST = 2**17
"""Scores of a call from which on chunks beat whole maps."""


class ScoreChunk(NamedTuple):
    """Some queries of some rows in all heads, and the first keys, which they may see."""

    rows: slice
    queries: slice
    seen: slice
    first: bool = False
    """Whether it is the first one of its rows, which sees all keys that any of them does."""


class Hidden(NamedTuple):
    """Which keys are hidden from which queries."""

    allowed: Callable[[ScoreChunk], Bool[Tensor, "b 1 t s"] | None]
    """True where a key of a chunk may be seen; None where all may.  A text of T tokens has T x S of
    them, more than anything else that is kept of a long one, so they are made chunk by chunk."""
    alike: bool
    """Whether that is the same for all rows."""
    causal: bool = False
    """Whether keys in columns behind a query are hidden from it, as many as there are queries."""
    offset: Float[Tensor, "b 1 T 1"] | None = None
    """What is added to all scores of a query."""


class Weighing(ABC):
    """From scores to weights, chunk by chunk, and back to the gradients of the scores."""

    masked: ClassVar[int] = 1
    """The first maps of scores, those with biases, which are -inf where a key is hidden."""
    tensors: ClassVar[int] = 1
    """How many `weigh` returns."""
    bears_empty: ClassVar[bool] = False
    """Whether queries without keys get weights of 0; softmax gives NaN."""

    @abstractmethod
    def weigh(self, scores: Sequence[Float[Tensor, "n H t s"]], chunk: ScoreChunk) -> tuple[Tensor, ...]:
        """Weights [n, H, t, s] of all maps of scores, which may be overwritten.

        Behind them other tensors that `slopes` reads, each one new or one of the scores.
        """

    @abstractmethod
    def slopes(self, kept: Sequence[Tensor], grad: Float[Tensor, "n H t s"]) -> Sequence[Float[Tensor, "n H t s"]]:
        """The gradients of the maps of scores, from what `weigh` gave and the gradient of weights.

        Only the latter may be overwritten.
        """

    def parameter_gradient(self) -> Tensor | None:
        """The gradient of the parameter, which the calls of `slopes` since the last one have summed."""
        return None


def in_chunks(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether chunks are the faster way for queries [B, *, T, D], keys and values [B, *, S, *]."""
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
    """The weights of maps of scores, scale q k^T + bias for each q and k, times v.

    A query that may see no key answers 0.  `weighing` is for this call alone.
    """
    plan = ChunkPlan(weighing, hidden, len(q), q[0], v.shape[2])
    y: Tensor = ChunkedMix.apply(plan, scale, parameter, bias, v, *q, *k)  # type: ignore[no-untyped-call]
    return y


def softmax_slopes(weights: Tensor, grad: Tensor) -> Tensor:
    """The gradient of scores whose softmax has these weights, given theirs."""
    slopes: Tensor = torch.ops.aten._softmax_backward_data(grad, weights, -1, weights.dtype)
    return slopes


class Softmax(Weighing):
    """The weights of scaled-dot, for a mechanism that only adds a bias."""

    def weigh(self, scores: Sequence[Tensor], chunk: ScoreChunk) -> tuple[Tensor]:
        return (scores[0].softmax(-1),)

    def slopes(self, kept: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
        return [softmax_slopes(kept[0], grad)]


class Sight(NamedTuple):
    """Which keys the queries of a chunk see."""

    added: Float[Tensor, "b 1 t s"] | None
    """What is added to scores: -inf where a key is hidden, but 0 in rows without keys."""
    shown: Bool[Tensor, "b 1 t 1"] | None
    """False for queries without keys; None where all have one."""


class ChunkPlan:
    """The chunks of a call, and what is added to the scores of each."""

    def __init__(self, weighing: Weighing, hidden: Hidden, maps: int, q: Tensor, keys: int) -> None:
        self.weighing, self.hidden, self.maps, self.kind = weighing, hidden, maps, q.dtype
        rows, heads, queries = q.shape[:3]
        self.heads = heads
        self.keeps = torch.is_grad_enabled() and maps * rows * heads * queries * keys <= KEPT
        room = max(1, CHUNK // (maps * heads * keys))  # queries at once
        # a chunk of a lone query is the last one: `Scored.allowed` takes it for that
        height = min(queries, max(room, LONG_HEIGHT))
        if hidden.causal:
            height = min(height, max(SHORTEST, -(-queries // PARTS)))
        depth = max(1, room // height)
        self.rows = [slice(row, min(row + depth, rows)) for row in range(0, rows, depth)]
        self.blocks = list[tuple[slice, slice]]()  # those that see most keys come first
        for first in reversed(range(0, queries, height)):
            last = min(first + height, queries)
            self.blocks.append((slice(first, last), slice(last if hidden.causal else keys)))
        self._alike = hidden.alike and (hidden.offset is None or len(hidden.offset) == 1)
        self._remembers = (1 if self._alike else rows) * queries * keys <= SIGHTS
        self._sights = dict[tuple[int, int], Sight]()

    def of_rows(self, rows: slice) -> Iterator[tuple[ScoreChunk, Sight]]:
        """Chunks of some rows, and what their queries see."""
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
                allowed = allowed | ~shown
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
        """What `Weighing.weigh` gives for a chunk; `both` are all queries and all keys of its rows."""
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
    """What is said of the queries of a chunk."""
    if x is None:
        return None
    return x[:, :, chunk.queries] if len(x) == 1 else x[chunk.rows, :, chunk.queries]


class ChunkedMix(torch.autograd.Function):
    """`chunked_mix`; see there."""

    @staticmethod
    def forward(
        ctx: Any, plan: ChunkPlan, scale: float, parameter: Tensor | None, bias: Tensor | None, v: Tensor, *qk: Tensor
    ) -> Tensor:
        """[B, H, T, E]; `qk` are all queries, then all keys."""
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
        """The gradients of the parameter, the bias, values, all queries and all keys."""
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
                if sight.shown is not None:
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
    """The heads of all rows, one behind the other."""
    return x.contiguous().flatten(0, 1)


def beside(x: Float[Tensor, "B H S E"], length: int) -> Float[Tensor, "B H T E"]:
    """Room for so many tokens, with heads side by side, as layers project them."""
    return x.new_empty(x.shape[0], length, x.shape[1], x.shape[3]).transpose(1, 2)


def product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """scale a b."""
    shape = a.shape[0], a.shape[1], b.shape[2]
    return torch.baddbmm(a.new_empty(()).expand(shape), a, b, beta=0, alpha=scale)


def bias_of(bias: Float[Tensor, "b h T S"], chunk: ScoreChunk) -> Float[Tensor, "b h t s"]:
    """A view of the bias of a chunk."""
    part = _part(bias, chunk)
    assert part is not None
    return part[..., chunk.seen]


def add_to(total: Float[Tensor, "N S D"], part: Float[Tensor, "N s D"], chunk: ScoreChunk) -> None:
    """Add to what the keys of a chunk have."""
    if chunk.first:
        total.copy_(part)
    else:
        total[:, chunk.seen] += part
