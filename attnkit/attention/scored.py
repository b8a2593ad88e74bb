"""Base class of mechanisms that compute a matrix of scores and take the softmax over the allowed keys."""

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
from attnkit.ops.score_chunks import ScoreChunk, ScoreMask, Weighing, chunked_mix
from attnkit.recipe.score_options import EntropyScale, ScoreOptions

LONG, BLOCK, DEVICE_BLOCK = 2**23, 2**20, 2**24
"""Minimum number of scores (heads x queries x keys) at which queries are computed in blocks, which training recomputes
in the backward pass, and the number of scores in a block on a CPU and on other devices. LONG is 8 heads of 1,024
tokens. At 2,048 tokens entmax and the Synthesizers without a table then hold 52 to 99 MB
(benchmarks/results/every-mechanism.md) instead of 420 to 1,090; causal layers take half the time, since a block skips
the keys behind it. Blocks for shorter sequences, and blocks of half the size, would be slower."""


class Scored(Attention):
    """Base class of mechanisms with a score matrix: y = softmax(scores) v over the allowed keys.

    Implement `scores`. Optionally override `allowed` to hide more keys, `added` to add a bias, `normalize` to replace
    the softmax, and `fused` to compute the output without the matrix. Caching and the options of `ScoreOptions` are
    handled here. The scores of the layer are multiplied by the entropy factor and capped; then the running sum of
    earlier layers is added, then bias and noise; the mask comes last.
    """

    homogeneous: ClassVar[bool] = False
    """Whether scores are proportional to q, so that a factor can be applied to q and `fused` can still be used."""
    corrected: ClassVar[bool] = False
    """Whether `scores` returns 2 H heads: the scores, then as many numbers that only `normalize` reads."""
    fuses_bias: ClassVar[bool] = False
    """Whether `fused` takes a bias as its last argument."""
    query_blocks: bool = True
    """Whether long sequences are computed in blocks of queries. Mechanisms with a table of positions set False, as the
    gradient of each block would be as large as the table."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.modifiers = ScoreOptions()  # replaced by `MultiHead.build`
        self.evaluation_noise = 0.0
        """Standard deviation of score noise in evaluation, set temporarily by `analysis.score_noise`."""

    def cached_keys(self, k: Float[Tensor, "B H S D"]) -> Float[Tensor, "B H S M"]:
        """Return what `scores` reads of each key; the state keeps it, so that it is computed only once per key."""
        return k

    @abstractmethod
    def scores(self, q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S M"], mask: Mask) -> Float[Tensor, "b H T S"]:
        """Return the scores before bias, mask and softmax; k is from `cached_keys`, unused q or k is None."""

    def allowed(self, mask: Mask) -> Bool[Tensor, "b 1 T S"] | None:
        """Return a matrix that is True for each key that a query may attend to; None if all keys are allowed."""
        # the only query of a packed mask is the last token, which may attend to all keys
        future = mask.causal and mask.q_pos.shape[1] > 1
        return None if mask.layout == "packed" and not future else mask.dense()

    def normalize(
        self, scores: Float[Tensor, "b H T S"], mask: Mask, raw_scores: Float[Tensor, "b H T S"]
    ) -> Float[Tensor, "b H T S"]:
        """Return the weights, with 0 for keys that are not allowed.

        `raw_scores` is the output of `scores` of this layer alone. A subclass that overrides this method, `scores` or
        `allowed` must not inherit a fused softmax: it sets `fused = Scored.fused`.
        """
        return visible_softmax(scores, self.allowed(mask))

    def fused(
        self, q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S E"], mask: Mask
    ) -> Float[Tensor, "B H T E"] | None:
        """Return the output without forming the score matrix, or None to use the plain path.

        The output must equal that of `scores` and `normalize` for the same q and k; k is the output of `cached_keys`.
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
        """Compute `chunked_mix` over the allowed keys; neighboring heads may share keys and values.

        `offset` is added to all scores of a query; `parameter` is the one whose gradient `weighing` computes.
        """
        heads, queries = q[0].shape[1:3]
        *keys, values = (repeat_heads(x, heads) for x in (*k, v))
        causal = mask.causal and queries == v.shape[2]

        def allowed(chunk: ScoreChunk) -> Tensor | None:
            return self.allowed(
                mask.part(chunk.queries.start, chunk.queries.stop, chunk.seen.stop).of_rows(chunk.rows)
            )

        same_rows = all(len(x) == 1 for x in mask[:3])
        score_mask = ScoreMask(allowed, same_rows, causal, offset)
        bias = None if bias is None else bias.expand(-1, -1, queries, v.shape[2])
        return chunked_mix(weighing, score_mask, scale, q, keys, values, bias, parameter)

    def added(
        self, call: AttentionCall, keys: Float[Tensor, "B H S M"] | None, state: State
    ) -> tuple[Float[Tensor, "b H T S"] | None, State]:
        """Return the bias to add to the scores, from all keys so far, and the new state."""
        return call.bias, state

    def key_length(self) -> float:
        """Return the norm that the option `key_norm` gives keys; in the dot-product family scores become q k / |k|."""
        return 1.0

    def keys_seen(self, mask: Mask) -> Int[Tensor, "b 1 T"]:
        """Return the number of allowed keys of each query."""
        allowed = self.allowed(mask)
        return mask.visible() if allowed is None else allowed.sum(-1)

    def answer(self, call: AttentionCall) -> Out:
        q, k, v, mask, state, prior, *_ = call
        options = self.modifiers
        if options.key_norm and k is not None:
            k = F.normalize(k, dim=-1) * self.key_length()
        k = None if k is None else self.cached_keys(k)  # before caching: once per key
        keys, values, state = self._extend_cache(k, v, state, mask.valid.shape[1])
        bias, state = self.added(call, keys, state)
        factor = self._factor(mask, values.dtype)
        if factor is not None and self.homogeneous and q is not None:  # keeps `fused` usable
            q, factor = q * factor, None
        noisy = self.noise > 0 or (self.training and options.attention_dropout > 0)
        # not supported by fused kernels
        plain = noisy or options.residual_scores or options.logit_cap is not None
        plain = plain or not (prior is factor is None) or (bias is not None and not self.fuses_bias)
        if not plain and q is not None and keys is not None:
            y = self.fused(q, keys, values, mask, *(() if bias is None else (bias,)))
            if y is not None:
                return Out(y, state)
        queries, per_query = mask.q_pos.shape[1], self.shape.heads * values.shape[2]  # scores per query
        call = call._replace(q=q, bias=bias)
        if not self.in_blocks(call, queries, values.shape[2]):
            raw_scores = self.scores(q, keys, mask)  # type: ignore[arg-type]
            return self.weigh(call, raw_scores, values, state, factor)
        # at least 2 queries: `allowed` takes a single query of a packed mask for the last token
        size = max(2, (BLOCK if values.device.type == "cpu" else DEVICE_BLOCK) // per_query)
        # keys behind the last query of a causal block are hidden from the whole block
        hide_later_keys, blocks = mask.causal and queries == values.shape[2], list[RowBlock]()
        for first in reversed(range(0, queries, size)):  # largest first: later blocks fit into the memory it frees
            last = min(first + size, queries)
            blocks.append(RowBlock(first, last, last if hide_later_keys else values.shape[2]))

        def weights(block: RowBlock, read: Sequence[Tensor | None]) -> Tensor:
            return self._block_weights(mask, block, read, factor)

        inputs = q, keys, values, bias
        return Out(recomputed(weights, blocks, inputs, self), state)

    def in_blocks(self, call: AttentionCall, queries: int, keys: int) -> bool:
        """Return whether the sequence is so long that its queries are computed in blocks."""
        whole = self.modifiers.residual_scores or call.prior is not None or not self.query_blocks
        # a compiled graph must work for any length
        whole = whole or torch.compiler.is_compiling()
        return not whole and queries * keys * self.shape.heads >= LONG

    def _block_weights(
        self, mask: Mask, block: RowBlock, read: Sequence[Tensor | None], factor: Float[Tensor, "b 1 T 1"] | None
    ) -> Float[Tensor, "b H t s"]:
        """Return the weights of a block of queries; `read` holds its parts of q, keys, values and bias."""
        q, keys, values, bias = read
        assert values is not None
        mask = mask.part(*block)
        factor = None if factor is None else factor[:, :, block.first : block.last]
        raw_scores = self.scores(q, keys, mask)  # type: ignore[arg-type]
        block_call = AttentionCall(q, keys, values, mask, bias=bias)
        return self._weights(block_call, raw_scores, values, factor)[0]

    def weigh(
        self,
        call: AttentionCall,
        raw_scores: Float[Tensor, "b H T S"],
        values: Float[Tensor, "B G S E"],
        state: State,
        factor: Tensor | None,
    ) -> Out:
        """Compute the output of a layer from its scores: running sum, mask, softmax, product with the values."""
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
        """Return the weights and the running sum of scores; `values` only give shape and dtype."""
        mask, prior, bias, options = call.mask, call.prior, call.bias, self.modifiers
        own_scores = raw_scores.chunk(2, 1)[0] if self.corrected else raw_scores
        total = own_scores if factor is None else own_scores * factor
        if options.logit_cap is not None:
            total = options.logit_cap * (total / options.logit_cap).tanh()
        if prior is not None and prior.shape[1] != own_scores.shape[1]:
            raise UsageError(
                f"residual_scores: the previous layer has {prior.shape[1]} score maps, but this layer has "
                f"{own_scores.shape[1]}; use the same mechanism in all layers"
            )
        total = total if prior is None else total + prior
        noise = self.noise
        if noise > 0 or (self.training and options.attention_dropout > 0):
            # scores that depend only on positions are one matrix for all rows, but random draws differ by row
            total = total.expand(values.shape[0], -1, -1, -1)
        # input of the softmax: the running sum or its mean, plus bias and noise
        scores = total / (self.shape.depth + 1) if options.residual_scores == "mean" else total
        scores = scores if bias is None else scores + bias
        if noise > 0:
            scores = scores + torch.randn_like(scores) * noise
        weights = self.normalize(scores, mask, raw_scores).to(values.dtype)  # `normalize` may use float32
        if self.training and options.attention_dropout > 0:
            weights = F.dropout(weights, options.attention_dropout)
        return weights, total

    @property
    def noise(self) -> float:
        """Standard deviation of the score noise in the current mode."""
        return self.modifiers.score_noise if self.training else self.evaluation_noise

    def _factor(self, mask: Mask, dtype: torch.dtype) -> Float[Tensor, "b 1 T 1"] | None:
        """Return the entropy factor of each query, or None if there is none."""
        scale = self.modifiers.entropy_scale
        if not isinstance(scale, EntropyScale) or (scale.test_only and self.training):
            return None
        seen = self.keys_seen(mask).clamp_min(max(1, scale.floor)).unsqueeze(-1).double()
        factor = seen.log() / math.log(scale.base)
        return (factor.clamp_min(1) if scale.test_only else factor).to(dtype)

    def _extend_cache(
        self, k: Tensor | None, v: Tensor | None, state: State, total: int
    ) -> tuple[Tensor | None, Tensor, State]:
        """Return all keys and values so far, and the state that holds them."""
        old_k, old_v = state if state is not None else (None, None)
        if v is not None:
            old_v = append(old_v, v, total)
            old_k = None if k is None else append(old_k, k, total)
        if old_v is None:
            raise ValueError("the first call needs keys and values; there is no state yet")
        return old_k, old_v, (old_k, old_v)


def visible_softmax(
    scores: Float[Tensor, "b H T S"], allowed: Bool[Tensor, "b 1 T S"] | None
) -> Float[Tensor, "b H T S"]:
    """Return the softmax over the allowed keys; a query without allowed keys gets zeros, never NaN."""
    if allowed is None:
        return scores.softmax(-1)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return weights.masked_fill(~allowed, 0)  # softmax gives NaN if all keys are hidden
