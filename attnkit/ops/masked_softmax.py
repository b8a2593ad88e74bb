"""Softmax over allowed keys whose rows end where a processor's vectors do.

Torch's softmax on a CPU takes whole vectors of a row and the rest one by one, which for the short
rows of sentences is most of them: it is several times faster on rows filled up with keys that
nobody sees.  The plain form is in `attnkit.attention.visible_softmax`.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnkit.ops.autograd import once_differentiable
from attnkit.ops.fast_cpu import usable

LEAST_SCORES = 2**14
"""With fewer scores, what a call costs counts for more than its arithmetic."""
VECTOR = 64
"""Bytes of the widest vectors."""


def worthwhile(scores: Float[Tensor, "b H T S"], allowed: Bool[Tensor, "b 1 T S"] | None) -> bool:
    """Whether `masked_softmax` may take these scores and is faster than the plain form."""
    if scores.numel() < LEAST_SCORES or not usable(scores, allowed):
        return False
    return allowed is not None or scores.shape[-1] * scores.element_size() % VECTOR != 0


def masked_softmax(
    scores: Float[Tensor, "b H T S"], allowed: Bool[Tensor, "b 1 T S"] | None
) -> Float[Tensor, "b H T S"]:
    """Softmax over the allowed keys (None: all); zeros for a query that may see none."""
    weights: Tensor = _MaskedSoftmax.apply(scores, allowed)  # type: ignore[no-untyped-call]
    return weights


class _MaskedSoftmax(torch.autograd.Function):
    """One buffer takes scores, mask and filling, and becomes the weights."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, allowed: Tensor | None) -> Tensor:
        ctx.shape, keys = scores.shape, scores.shape[-1]
        if allowed is None:
            weights = _filled(scores, scores.shape, -torch.inf)
            weights[..., :keys] = scores
        else:
            allowed = allowed[:, :, :1] if allowed.stride(2) == 0 else allowed
            bias = scores.new_zeros(allowed.shape).masked_fill_(~allowed, -torch.inf)
            # the mask may have more rows
            shape = torch.broadcast_shapes(scores.shape, bias.shape)  # type: ignore[no-untyped-call]
            weights = _filled(scores, shape, -torch.inf)
            torch.add(scores, bias, out=weights[..., :keys])
        torch.softmax(weights, -1, out=weights)
        if allowed is not None and not (some := allowed.any(-1, keepdim=True)).all():
            weights.masked_fill_(~some, 0)  # so far NaN
        ctx.save_for_backward(weights)
        return weights[..., :keys]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        keys = gradient.shape[-1]
        whole = _filled(gradient, gradient.shape, 0.0)
        whole[..., :keys] = gradient
        of_scores = torch._softmax_backward_data(whole, weights, -1, weights.dtype)
        return of_scores[..., :keys].sum_to_size(ctx.shape), None


def _filled(like: Tensor, shape: torch.Size, value: float) -> Tensor:
    """A new tensor with rows of whole vectors; behind the keys they have this value."""
    unit = VECTOR // like.element_size()
    buffer = like.new_empty((*shape[:-1], -(-shape[-1] // unit) * unit))
    buffer[..., shape[-1] :] = value
    return buffer
