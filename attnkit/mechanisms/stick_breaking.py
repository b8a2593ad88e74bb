"""Stick-breaking attention: A_ij = b_ij prod_(j<m<i) (1 - b_im), b_ij = sigmoid(q_i k_j / sqrt(D)).

Each query breaks a stick of length 1, from the nearest key back: a key gets the share b of what is left. So near keys
come first without any position encoding, and what is left at the end goes to no key: rows sum to at most 1. A query
attends to the keys before it, and with `include_self` to its own too; the first token attends to none and its output
is zero. Products are sums of logarithms.

Decoder only, as the stick is broken from the nearest past key back. No norm follows it here. Source: Tan et al. 2025,
"Scaling Stick-Breaking Attention: An Efficient Implementation and In-depth Study", equations 1 and 2; `include_self`
as in its released code (attend_current).

Worked number: all scores 0, so b = 1/2: the fourth query gives the three tokens before it the weights 1/8, 1/4, 1/2;
with `include_self` its own is 1/2 and theirs 1/16, 1/8, 1/4.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask, Shape, one_head
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.ops.autograd import once_differentiable
from attnkit.ops.linear_attention import widest
from attnkit.ops.score_chunks import ScoreChunk, Weighing, in_chunks

STRAIGHT = 40.0
"""Minimum score at which log(1 + e^s) equals s to the last digit of float64."""


class StickWeights(torch.autograd.Function):
    """exp(log b_ij - sum over nearer m of r_im), r_im = log(1 + e^s_im) = -log(1 - b_im).

    With G_ij the gradient of the weight A_ij, the gradient of s_im is G_im A_im - b_im sum over j of G_ij A_ij, where
    j is key m and all keys farther away.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, hidden: Tensor) -> Tensor:
        rest = F.softplus(scores, threshold=STRAIGHT).masked_fill_(hidden, 0)
        nearer = rest.flip(-1).cumsum_(-1).flip(-1)  # summed from the nearest key, so that no digits are lost
        weights = F.softplus(-scores, threshold=STRAIGHT).neg_()  # log b, exact for any score
        weights[..., :-1] -= nearer[..., 1:]
        weights.exp_().masked_fill_(hidden, 0)
        ctx.save_for_backward(scores, hidden, weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        scores, hidden, weights = ctx.saved_tensors
        grad_log = grad * weights
        shared = grad_log.cumsum(-1).mul_(scores.sigmoid())
        return grad_log.sub_(shared).masked_fill_(hidden, 0), None


class Shares(Weighing):
    """b_ij prod (1 - b_im), chunk by chunk; a hidden key has b = 0."""

    tensors, handles_empty = 2, True

    def weigh(self, scores: Sequence[Tensor], chunk: ScoreChunk) -> tuple[Tensor, Tensor]:
        share = scores[0].sigmoid_()
        weights = share.flip(-1)  # from the nearest key on
        left = (1 - weights).cumprod(-1)
        weights[..., 1:] *= left[..., :-1]
        return weights.flip(-1), share

    def score_gradients(self, kept: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
        """Compute the gradient as in `StickWeights`."""
        weights, share = kept
        grad_log = grad.mul_(weights)
        return [grad_log.addcmul(grad_log.cumsum(-1), share, value=-1)]


class StickBreaking(ScaledDot):
    """Shares of what nearer keys leave; cost T*S*D. For `key_heads` see `dot`."""

    encoder = False
    cross = False
    by_distance = True
    normalized = False
    why = "the stick is broken from the nearest past key backwards"
    fuses_bias = True

    def __init__(self, shape: Shape, *, include_self: bool = False, key_heads: int | None = None) -> None:
        super().__init__(shape, key_heads=key_heads)
        self.include_self = include_self

    def allowed(self, mask: Mask) -> Bool[Tensor, "b 1 T S"]:
        """Return the keys before the query, and its own if `include_self`."""
        if self.include_self:
            return mask.dense()
        earlier = mask.k_pos[:, None, None, :] < mask.q_pos[:, None, :, None]
        return earlier & mask.valid[:, None, None, :]

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor | None:
        """Compute in chunks, by products."""
        if not in_chunks(q, k, v):
            return None
        return self.chunked(Shares(), self.scale, (q,), (k,), v, mask, bias)

    def normalize(self, scores: Tensor, mask: Mask, raw_scores: Tensor) -> Float[Tensor, "b H T S"]:
        scores = scores.to(widest(scores.dtype))
        weights: Tensor = StickWeights.apply(scores, ~self.allowed(mask))  # type: ignore[no-untyped-call]
        return weights

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        maps = []
        for include_self in (False, True):
            mechanism = cls(Shape(1, 1, 4), include_self=include_self)
            x = one_head((0,), (0,), (0,), (0,))
            mask = Mask.packed(4, torch.device("cpu"), causal=True)
            maps.append(mechanism.weights(x, x, x, mask)[:, :, 3:])
        return torch.cat(maps, 2), one_head((1 / 8, 1 / 4, 1 / 2, 0), (1 / 16, 1 / 8, 1 / 4, 1 / 2))
