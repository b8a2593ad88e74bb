"""Training losses over the vocabulary, fused with the output projection."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnkit.kernels.autograd import once_differentiable

CHUNK = 2**21
"""Logits held at once (about 8 MB in float32): small enough for a processor's cache."""


class Losses(NamedTuple):
    """Sums over tokens, in nats; divide by the token count once, over all micro-batches."""

    total: Tensor
    """The training loss; the only differentiable one."""
    nll: Tensor
    """Plain cross-entropy, whatever the training loss."""


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Projection, label-smoothed cross-entropy and both gradients in one pass over row chunks.

    The [tokens, vocabulary] matrix exists a chunk at a time only, and the gradient is formed while
    a chunk is in cache.  `reference` in the tests is the plain composition.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Hidden [N, W], weight [V, W], targets [N] -> total, nll (sums)."""
        wide = torch.promote_types(hidden.dtype, torch.float32)
        needs = any(ctx.needs_input_grad[:2])
        grad_hidden = torch.empty_like(hidden) if needs else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if needs else None
        sums = torch.zeros(2, dtype=wide, device=hidden.device)
        size = weight.shape[0]
        rows = max(1, CHUNK // size)
        for first in range(0, hidden.shape[0], rows):
            part = slice(first, first + rows)
            h, y = hidden[part], targets[part, None]
            logs = (h @ weight.t()).log_softmax(-1, dtype=wide)
            nll = -logs.gather(1, y).sum()
            sums += torch.stack(((1 - smoothing) * nll - smoothing / size * logs.sum(), nll))
            if grad_hidden is None or grad_weight is None:
                continue
            gradient = logs.exp_()  # of the logits; so far the probabilities
            if smoothing:
                gradient -= smoothing / size
            gradient.scatter_add_(1, y, gradient.new_full(y.shape, smoothing - 1))
            narrow = gradient.to(hidden.dtype)
            grad_hidden[part] = narrow @ weight
            grad_weight += narrow.t() @ h
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.dtype = weight.dtype
        total, nll = sums.unbind()
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """The stored gradients times the gradient of the sum."""
        grad_hidden, grad_weight = ctx.saved_tensors
        # scaled before the cast: a sum over many tokens may not fit a 16-bit float
        weight = (grad_weight * gradient).to(ctx.dtype)
        return grad_hidden * gradient.to(grad_hidden.dtype), weight, None, None


def cross_entropy(
    hidden: Float[Tensor, "N W"],
    weight: Float[Tensor, "V W"],
    targets: Int[Tensor, " N"],
    smoothing: float = 0.0,
) -> Losses:
    """Label-smoothed cross-entropy of softmax(hidden weight^T) (Szegedy et al. 2016, section 7).

    The target gets 1 - smoothing + smoothing / V, every other entry smoothing / V.  Leave pads out
    before the call.
    """
    sums = _SmoothedCrossEntropy.apply(hidden, weight, targets, smoothing)  # type: ignore[no-untyped-call]
    return Losses(*sums)
