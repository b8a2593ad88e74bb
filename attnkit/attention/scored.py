"""Mechanisms that form a matrix of scores, then take the softmax over the allowed keys."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention.base import Attention, AttentionCall, Out, Shape
from attnkit.attention.cache import State, append
from attnkit.attention.mask import Mask
from attnkit.errors import UsageError
from attnkit.ops.grouped_heads import mix, repeat_heads
from attnkit.ops.recomputed_blocks import RowBlock, recomputed
from attnkit.ops.score_chunks import Hidden, ScoreChunk, Weighing, chunked_mix
from attnkit.recipe.score_options import EntropyScale, ScoreOptions

LONG, BLOCK, DEVICE_BLOCK = 2**23, 2**20, 2**24
"""From LONG scores a text on (8 heads of 1,024 tokens), queries are answered in blocks with so many
scores on a CPU, or on a device, and training computes a block again for its gradients.  For a text
of 2,048 tokens entmax and the Synthesizers without a table hold 52 to 99 MB then
(benchmarks/results/every-mechanism.md), instead of 420 to 1,090; causal ones take half
the time, since a block leaves out the keys behind it.  Shorter texts, and blocks half as large,
would take longer."""


class Scored(Attention):
    """A matrix of scores, then softmax over the allowed keys.

    A subclass fills `scores`, and may narrow `allowed`, offer a `fused` path, add a bias (`added`),
    or put something else in the place of the softmax (`normalise`).  Scores of a layer are its own,
    times the entropy factor, capped; plus the running sum of the layers before; plus bias and
    noise; then the mask.
    """

    homogeneous: ClassVar[bool] = False
    """Scores are proportional to q, so a factor may go into q (and the fused path stays open)."""
    corrected: ClassVar[bool] = False
    """`scores` returns as many numbers more, behind the scores, for `normalise` alone."""
    fuses_bias: ClassVar[bool] = False
    """`fused` takes a bias as its last argument."""
    query_blocks: bool = True
    """Whether long texts are answered in blocks of queries.  A table of positions says False: the
    gradient of each block would be as large as the table."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.modifiers = ScoreOptions()  # those that a layer is built with replace them
        self.evaluation_noise = 0.0
        """As `modifiers.score_noise`, in evaluation: `analysis.score_noise` sets it for a while."""

    def cached_keys(self, k: Float[Tensor, "B H S D"]) -> Float[Tensor, "B H S M"]:
        """What scores read of each key by itself; a state keeps that, so it is made only once."""
        return k

    @abstractmethod
    def scores(self, q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S M"], mask: Mask) -> Float[Tensor, "b H T S"]:
        """Scores before bias, mask and softmax; k as `cached_keys` made it.

        A mechanism whose `uses` lacks q or k is given None for it.
        """

    def allowed(self, mask: Mask) -> Bool[Tensor, "b 1 T S"] | None:
        """True where a key may be seen; None where all may."""
        # the only query of a packed mask is the last one, which sees all keys
        future = mask.causal and mask.q_pos.shape[1] > 1
        return None if mask.layout == "packed" and not future else mask.dense()

    def normalise(
        self, scores: Float[Tensor, "b H T S"], mask: Mask, raw_scores: Float[Tensor, "b H T S"]
    ) -> Float[Tensor, "b H T S"]:
        """Weights of the scores, 0 where a key may not be seen.

        `raw_scores` are of this layer alone, as `scores` returned them.
        A subclass that overrides it, `scores` or `allowed` must not inherit a fused softmax: it
        sets `fused = Scored.fused`.
        """
        return visible_softmax(scores, self.allowed(mask))

    def fused(
        self, q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S E"], mask: Mask
    ) -> Float[Tensor, "B H T E"] | None:
        """The answer without forming the matrix, or None to take the plain path.

        It equals `scores` and `normalise` on the same q and k, which is as `cached_keys` made it.
        """
        return None

    def chunked(
        self,
        weighing: Weighing,
        scale: float,
        q: Sequence[Float[Tensor, "B H T D"]],
        k: Sequence[Float[Tensor, "B G S D"]],
        v: Float[Tensor, "B G S E"],
        mask: Mask,
        bias: Float[Tensor, "b h T S"] | None = None,
        *,
        offset: Float[Tensor, "b 1 T 1"] | None = None,
        parameter: Tensor | None = None,
    ) -> Float[Tensor, "B H T E"]:
        """`chunked_mix` of the keys that are allowed; neighbouring heads may share keys and values.

        `offset` is added to all scores of a query; `parameter` is the one that `weighing` has a gradient for.
        """
        heads, queries = q[0].shape[1:3]
        *keys, values = (repeat_heads(x, heads) for x in (*k, v))
        causal = mask.causal and queries == v.shape[2]

        def allowed(chunk: ScoreChunk) -> Tensor | None:
            return self.allowed(
                mask.part(chunk.queries.start, chunk.queries.stop, chunk.seen.stop).of_rows(chunk.rows)
            )

        alike = all(len(x) == 1 for x in mask[:3])
        hidden = Hidden(allowed, alike, causal, offset)
        bias = None if bias is None else bias.expand(-1, -1, queries, v.shape[2])
        return chunked_mix(weighing, hidden, scale, q, keys, values, bias, parameter)

    def added(
        self, call: AttentionCall, keys: Float[Tensor, "B H S M"] | None, state: State
    ) -> tuple[Float[Tensor, "b H T S"] | None, State]:
        """What is added to the scores, from all keys seen so far, and the state to go on with."""
        return call.bias, state

    def key_length(self) -> float:
        """The length that `key_norm` gives keys; in the dot family scores are then q k / |k|."""
        return 1.0

    def keys_seen(self, mask: Mask) -> Int[Tensor, "b 1 T"]:
        """The number of allowed keys of each query."""
        allowed = self.allowed(mask)
        return mask.visible() if allowed is None else allowed.sum(-1)

    def answer(self, call: AttentionCall) -> Out:
        q, k, v, mask, state, prior, *_ = call
        chosen = self.modifiers
        if chosen.key_norm and k is not None:
            k = F.normalize(k, dim=-1) * self.key_length()
        k = None if k is None else self.cached_keys(k)  # before the cache: once for each key
        keys, values, state = self._extend_cache(k, v, state, mask.valid.shape[1])
        bias, state = self.added(call, keys, state)
        factor = self._factor(mask, values.dtype)
        if factor is not None and self.homogeneous and q is not None:  # `fused` stays possible
            q, factor = q * factor, None
        noisy = self.noise > 0 or (self.training and chosen.attention_dropout > 0)
        # a fused kernel has none of these
        plain = noisy or chosen.residual_scores or chosen.logit_cap is not None
        plain = plain or not (prior is factor is None) or (bias is not None and not self.fuses_bias)
        if not plain and q is not None and keys is not None:
            y = self.fused(q, keys, values, mask, *(() if bias is None else (bias,)))
            if y is not None:
                return Out(y, state)
        queries, per_query = mask.q_pos.shape[1], self.shape.heads * values.shape[2]  # scores
        call = call._replace(q=q, bias=bias)
        if not self.in_blocks(call, queries, values.shape[2]):
            raw_scores = self.scores(q, keys, mask)  # type: ignore[arg-type]
            return self.weigh(call, raw_scores, values, state, factor)
        # 2 at least: `allowed` takes a lone query of a packed mask for the last one
        size = max(2, (BLOCK if values.device.type == "cpu" else DEVICE_BLOCK) // per_query)
        # keys behind the last query of a causal block are hidden from all of them
        behind, blocks = mask.causal and queries == values.shape[2], list[RowBlock]()
        for first in reversed(range(0, queries, size)):  # those that see most keys come first
            last = min(first + size, queries)
            blocks.append(RowBlock(first, last, last if behind else values.shape[2]))

        def weights(block: RowBlock, read: Sequence[Tensor | None]) -> Tensor:
            return self._block_weights(mask, block, read, factor)

        given = q, keys, values, bias
        return Out(recomputed(weights, blocks, given, self), state)

    def in_blocks(self, call: AttentionCall, queries: int, keys: int) -> bool:
        """Whether a text is so long that its queries are answered in blocks."""
        whole = self.modifiers.residual_scores or call.prior is not None or not self.query_blocks
        # a compiled graph is for any length
        whole = whole or torch.compiler.is_compiling()
        return not whole and queries * keys * self.shape.heads >= LONG

    def _block_weights(
        self, mask: Mask, block: RowBlock, read: Sequence[Tensor | None], factor: Float[Tensor, "b 1 T 1"] | None
    ) -> Float[Tensor, "b H t s"]:
        """The weights of the queries of a block, from what it reads: q, keys, values and bias."""
        q, keys, values, bias = read
        assert values is not None
        mask = mask.part(*block)
        factor = None if factor is None else factor[:, :, block.first : block.last]
        raw_scores = self.scores(q, keys, mask)  # type: ignore[arg-type]
        own = AttentionCall(q, keys, values, mask, bias=bias)
        return self._weights(own, raw_scores, values, factor)[0]

    def weigh(
        self,
        call: AttentionCall,
        raw_scores: Float[Tensor, "b H T S"],
        values: Float[Tensor, "B G S E"],
        state: State,
        factor: Tensor | None,
    ) -> Out:
        """From the scores of a layer to its output: running sum, mask, softmax, values."""
        weights, total = self._weights(call, raw_scores, values, factor)
        residual = self.modifiers.residual_scores
        carried = total.expand(values.shape[0], -1, -1, -1) if residual else None
        return Out(mix(weights, values), state, carried)

    def _weights(
        self,
        call: AttentionCall,
        raw_scores: Float[Tensor, "b H T S"],
        values: Float[Tensor, "B G S E"],
        factor: Tensor | None,
    ) -> tuple[Float[Tensor, "b H T S"], Float[Tensor, "b H T S"]]:
        """The weights, and the running sum of scores; `values` give only shape and type."""
        mask, prior, bias, chosen = call.mask, call.prior, call.bias, self.modifiers
        own = raw_scores.chunk(2, 1)[0] if self.corrected else raw_scores
        total = own if factor is None else own * factor
        if chosen.logit_cap is not None:
            total = chosen.logit_cap * (total / chosen.logit_cap).tanh()
        if prior is not None and prior.shape[1] != own.shape[1]:
            raise UsageError(
                f"residual_scores: the layer before has {prior.shape[1]} maps of scores, this one "
                f"{own.shape[1]}; choose it for layers with one mechanism"
            )
        total = total if prior is None else total + prior
        noise = self.noise
        if noise > 0 or (self.training and chosen.attention_dropout > 0):
            # what depends on positions only is one matrix for all rows, but each row has its draws
            total = total.expand(values.shape[0], -1, -1, -1)
        # what the softmax sees: the mean of the running sum where asked, with bias and noise
        scores = total / (self.shape.depth + 1) if chosen.residual_scores == "mean" else total
        scores = scores if bias is None else scores + bias
        if noise > 0:
            scores = scores + torch.randn_like(scores) * noise
        weights = self.normalise(scores, mask, raw_scores).to(values.dtype)  # some use float32
        if self.training and chosen.attention_dropout > 0:
            weights = F.dropout(weights, chosen.attention_dropout)
        return weights, total

    @property
    def noise(self) -> float:
        """Standard deviation of the noise that scores get now."""
        return self.modifiers.score_noise if self.training else self.evaluation_noise

    def _factor(self, mask: Mask, dtype: torch.dtype) -> Float[Tensor, "b 1 T 1"] | None:
        """The entropy factor of each query, or None."""
        scale = self.modifiers.entropy_scale
        if not isinstance(scale, EntropyScale) or (scale.test_only and self.training):
            return None
        seen = self.keys_seen(mask).clamp_min(max(1, scale.floor)).unsqueeze(-1).double()
        factor = seen.log() / math.log(scale.base)
        return (factor.clamp_min(1) if scale.test_only else factor).to(dtype)

    def _extend_cache(
        self, k: Tensor | None, v: Tensor | None, state: State, total: int
    ) -> tuple[Tensor | None, Tensor, State]:
        """All keys and values seen so far, and the state that holds them."""
        old_k, old_v = state if state is not None else (None, None)
        if v is not None:
            old_v = append(old_v, v, total)
            old_k = None if k is None else append(old_k, k, total)
        if old_v is None:
            raise ValueError("keys and values must come with the first call; there is no state yet")
        return old_k, old_v, (old_k, old_v)


def visible_softmax(
    scores: Float[Tensor, "b H T S"], allowed: Bool[Tensor, "b 1 T S"] | None
) -> Float[Tensor, "b H T S"]:
    """Softmax over the allowed keys; a query that may see none gets zeros, never NaN."""
    if allowed is None:
        return scores.softmax(-1)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return weights.masked_fill(~allowed, 0)  # where all is hidden, softmax gives NaN
