"""Training losses over the vocabulary, fused with the output projection."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnkit.ops.autograd import once_differentiable
from attnkit.ops.onednn import product

CHUNK = 2**22
"""Logits held at once (16 MB in float32): small enough for a processor's last cache."""
LEAST_TOKENS = 2
"""Tokens of a chunk at least, as a multiple of the width, whatever the vocabulary.

Each chunk reads and writes the gradient of all weights [V, W], which would otherwise take longer
than its products.  Logits then take twice the memory of that gradient.
"""


class Losses(NamedTuple):
    """Sums over tokens, in nats; divide by the token count once, over all micro-batches."""

    total: Tensor
    """The training loss; the only differentiable one."""
    nll: Tensor
    """Cross-entropy without smoothing."""


class _SmoothedLoss(torch.autograd.Function):
    """Projection, label-smoothed loss and both gradients in one pass over row chunks.

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
        sums = torch.zeros(2, dtype=wide, device=hidden.device)
        size, width = weight.shape
        # smoothing changes the gradient of every logit by the same, so that sums are enough for it
        share = -smoothing / size
        all_hidden = hidden.sum(0, dtype=wide)  # [W]
        smoothed = share * weight.sum(0, dtype=wide) if smoothing else None  # [W]
        added = None if smoothed is None else smoothed.to(weight.dtype)
        grad_weight = (share * all_hidden).expand(size, width).clone().t() if needs else None
        rows = max(1, CHUNK // size, LEAST_TOKENS * width)
        for first in range(0, hidden.shape[0], rows):
            part = slice(first, first + rows)
            h, y = hidden[part], targets[part, None]
            logits = product(h, weight).to(wide)
            # log-sum-exp by the largest logit, whose probability is at least 1 / V
            chosen, largest = logits.gather(1, y), logits.amax(-1, keepdim=True)  # [rows, 1]
            gradient = torch.softmax(logits, -1, out=logits)  # so far the probabilities
            norm = largest - gradient.amax(-1, keepdim=True).log()
            log_p = chosen - norm
            sums += torch.stack((log_p.sum(), norm.sum()))
            if grad_hidden is None or grad_weight is None:
                continue
            gradient.scatter_add_(1, y, torch.full_like(log_p, smoothing - 1))
            narrow = gradient.to(hidden.dtype)
            grad_hidden[part] = product(narrow, weight.t(), added)
            grad_weight += product(h.t(), narrow.t())
        log_p, norm = sums.unbind()
        total, nll = (smoothing - 1) * log_p, -log_p
        if smoothed is not None:
            total = total + smoothing * norm + all_hidden @ smoothed
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.dtype = weight.dtype
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """The stored gradients times the gradient of the sum."""
        grad_hidden, grad_weight = ctx.saved_tensors
        # scaled before the cast: a sum over many tokens may not fit a 16-bit float
        weight = (grad_weight * gradient).to(ctx.dtype).t()
        return grad_hidden * gradient.to(grad_hidden.dtype), weight, None, None


def token_losses(
    hidden: Float[Tensor, "N W"],
    weight: Float[Tensor, "V W"],
    targets: Int[Tensor, " N"],
    smoothing: float = 0.0,
) -> Losses:
    """Label-smoothed cross-entropy of softmax(hidden weight^T).

    Smoothing (Szegedy et al. 2016, section 7) gives the target 1 - smoothing + smoothing / V and
    every other entry smoothing / V.  Leave pads out before the call.
    """
    sums = _SmoothedLoss.apply(hidden, weight, targets, smoothing)  # type: ignore[no-untyped-call]
    return Losses(*sums)
