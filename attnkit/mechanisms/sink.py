"""Sink attention: A_ij = exp s_ij / (exp z + sum_j exp s_ij), s = q k^T / sqrt(D).

One more logit z per head takes part in the softmax and has no value: a query that needs nothing gives its weight to
the sink, so rows sum to less than 1. `logit: learned` is one number per head, initially 0 (as in gpt-oss); `zero`
fixes z = 0, the softmax "off by one" of Miller 2023. With `window` a query attends to the keys at most that far away
(with distances as in `local`) and to the first `keep` tokens of the sequence, which attract the weight in models
trained without a sink; without `window`, `keep` has no effect.

A window is for self-attention; long sequences are then computed in blocks of queries against overlapping windows of
keys, at the cost T*window*D, and a decoding step reads the last window + 1 keys and the first keys. Without a window,
long sequences use torch's fused kernel, whose softmax sums are corrected by the sink: at 2,048 tokens 3.8 times as
fast as the plain form. Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", sections
3.2 and 3.3; OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", section 2.2 (a learned bias in the denominator);
Miller 2023, "Attention Is Off By One".

Worked number: z = 0, three keys of score 0: each has the weight 1/4.
"""

from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import Mask, Shape, at_least, dot_scores, mix, one_head
from attnkit.attention.mask import readable, with_pads_last
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.ops.autograd import once_differentiable
from attnkit.ops.fast_cpu import FLASH, FLASH_BACKWARD, few_scores, operator, usable
from attnkit.ops.grouped_heads import repeat_heads
from attnkit.ops.sliding_window import MIN_QUERIES, Band

PLAIN_UP_TO = 32 * 32
"""Number of scores per head up to which plain products are faster than the fused kernel on a CPU."""


class SunkSoftmax(torch.autograd.Function):
    """Attention with a sink by torch's fused kernel for the CPU.

    Its backward pass takes the outputs and the logarithms of the softmax sums; given both with the sink, it returns
    the gradients with the sink.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, z: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
        """Return [B, H, T, D] of q, k, v [B, H, T or S, D] and logits z [H]."""
        y, logs = operator(FLASH)(q, k, v, is_causal=causal, attn_mask=bias)
        if bias is not None:
            logs = logs.masked_fill((bias == -torch.inf).all(-1), -torch.inf)  # FLASH returns 0
        total = torch.logaddexp(logs, z.to(logs.dtype)[:, None].expand_as(logs))
        answers: Tensor = y * (logs - total).exp().unsqueeze(-1).to(y.dtype)
        ctx.causal = causal
        ctx.save_for_backward(q, k, v, z, answers, total, *(() if bias is None else (bias,)))
        return answers

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, z, y, total, *bias = ctx.saved_tensors
        grads = operator(FLASH_BACKWARD)(grad, q, k, v, y, total, 0.0, ctx.causal, attn_mask=bias[0] if bias else None)
        share = (z.to(total.dtype)[:, None] - total).exp()  # weight of the sink
        grad_z = -(share * (grad * y).sum(-1)).sum((0, 2))  # dy / dz = -share y
        return (*grads, grad_z.to(z.dtype), None, None)


class Sink(ScaledDot):
    """Softmax with a sink; cost T*S*D, or T*window*D. For `key_heads` see `dot`."""

    normalized = False
    given = {
        "window": {
            "cross": False,
            "by_distance": True,
            "quadratic": False,
            "cost": "T*window*D",
            "why": "its window covers distances within one sequence",
        }
    }

    def __init__(
        self,
        shape: Shape,
        *,
        logit: Literal["learned", "zero"] = "learned",
        window: int | None = None,
        keep: int = 4,
        key_heads: int | None = None,
    ) -> None:
        super().__init__(shape, key_heads=key_heads)
        self.logit = nn.Parameter(torch.zeros(shape.heads)) if logit == "learned" else None
        self.window = None if window is None else at_least("sink", "window", window)
        self.keep = at_least("sink", "keep", keep, 0)

    def sink(self, like: Tensor) -> Float[Tensor, " H"]:
        """Return the logits of the sinks."""
        if self.logit is None:
            return like.new_zeros(self.shape.heads)
        return self.logit.to(torch.promote_types(like.dtype, torch.float32))

    def allowed(self, mask: Mask) -> Bool[Tensor, "b 1 T S"] | None:
        """Return the visible keys within the window or among the first `keep`."""
        if self.window is None:
            return super().allowed(mask)
        q_pos, k_pos = mask.q_pos[:, None, :, None], mask.k_pos[:, None, None, :]
        return mask.dense() & (((q_pos - k_pos).abs() <= self.window) | (k_pos < self.keep))

    def normalize(self, scores: Tensor, mask: Mask, raw_scores: Tensor) -> Float[Tensor, "b H T S"]:
        """Compute the softmax over the allowed keys and the sink, without the column of the sink."""
        allowed = self.allowed(mask)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        return with_sink(scores, self.sink(scores))

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        """Use the fused kernel or, with a window, blocks of queries and few keys for a decoding step."""
        queries, keys = q.shape[2], k.shape[2]
        if v.shape[3] != q.shape[3]:
            return None  # for `weights`: the values are the identity
        if self.window is not None:
            return None if torch.compiler.is_compiling() else self._near(q, k, v, mask)
        supported = usable(q, operators=(FLASH, FLASH_BACKWARD), autocast=True)
        if not supported or few_scores(q, k, PLAIN_UP_TO):
            return None
        causal = mask.layout == "packed" and mask.causal and queries == keys
        bias = None
        if not causal and not (mask.layout == "packed" and not mask.causal):
            bias = torch.zeros((), dtype=q.dtype).masked_fill(~mask.dense(), -torch.inf)
        k, v = (repeat_heads(x, q.shape[1]) for x in (k, v))
        y: Tensor = SunkSoftmax.apply(  # type: ignore[no-untyped-call]
            q, k, v, self.sink(q), bias, causal
        )
        return y

    def _near(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        """Compute with a window: a long sequence in blocks, a decoding step from a few keys."""
        assert self.window is not None
        queries, keys = q.shape[2], k.shape[2]
        if mask.causal and queries == 1 and mask.layout == "packed":
            first = keys - 1 - self.window
            if first <= self.keep:  # the window reaches the first keys: nothing is saved
                return None
            k, v = (torch.cat((x[:, :, : self.keep], x[:, :, first:]), 2) for x in (k, v))
            return mix(with_sink(self.scores(q, k, mask), self.sink(q)).to(v.dtype), v)
        if queries != keys or queries <= max(MIN_QUERIES, self.window + self.keep):
            return None
        if not (readable(mask.q_pos) or mask.layout != "any"):
            return None
        return with_pads_last(partial(self._blocks, mask.causal), mask, q, k, v)

    def _blocks(
        self, causal: bool, valid: Bool[Tensor, "b T"], q: Tensor, k: Tensor, v: Tensor
    ) -> Float[Tensor, "B H T D"]:
        """Compute rows without padding before their tokens, so that columns are positions."""
        assert self.window is not None
        length, keep = q.shape[2], self.keep
        k, v = (repeat_heads(x, q.shape[1]).contiguous() for x in (k, v))  # one memory layout: products round alike
        band = Band.of(self.window, length, causal=causal)
        padding = -length % band.step
        around = (0, 0, band.before, padding + band.after)
        near_k, near_v = (F.pad(x, around).unfold(2, band.width, band.step) for x in (k, v))
        blocks = torch.unflatten(F.pad(q, (0, 0, 0, padding)), 2, (-1, band.step))
        distance = band.distances(q.device)  # [step, width]
        inside = (distance.abs() <= self.window) & (distance >= (0 if causal else -length))
        real = F.pad(valid, around[2:]).unfold(1, band.width, band.step)[:, None, :, None]
        scale = q.shape[-1] ** -0.5
        near = ((blocks * scale) @ near_k).masked_fill(~(inside & real), -torch.inf)
        rows = torch.arange(length, device=q.device)[:, None]
        beyond = (rows - rows[:keep, 0]).abs() > self.window  # otherwise they would count twice
        beyond = beyond & ((rows > rows[:keep, 0]) if causal else True)
        first = dot_scores(q * scale, k[:, :, :keep])  # [B, H, T, keep]
        first = first.masked_fill(~(beyond & valid[:, None, None, :keep]), -torch.inf)
        near = near.flatten(2, 3)[:, :, :length]  # [B, H, T, width]
        weights = with_sink(torch.cat((near, first), -1), self.sink(q)).to(v.dtype)
        near = F.pad(weights[..., : band.width], (0, 0, 0, padding))
        near = torch.unflatten(near, 2, (-1, band.step)) @ near_v.transpose(-1, -2)
        y: Tensor = near.flatten(2, 3)[:, :, :length]
        return y + weights[..., band.width :] @ v[:, :, :keep]

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=3), logit="zero")
        x = one_head((0,), (0,), (0,))
        mask = Mask.cross(torch.ones(1, 3, dtype=torch.bool), 1)
        return mechanism.weights(x[:, :, :1], x, x, mask), one_head((0.25, 0.25, 0.25))


def with_sink(scores: Float[Tensor, "b H T S"], logit: Float[Tensor, " H"]) -> Float[Tensor, "b H T S"]:
    """Return the softmax of scores (-inf: hidden) and one more logit, without the column of that logit."""
    column = logit.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1]
