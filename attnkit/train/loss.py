"""Training losses over the vocabulary, fused with the output projection."""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnkit.ops.autograd import once_differentiable
from attnkit.ops.onednn import product
from attnkit.recipe.schema import TrainConfig

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
    """Plain cross-entropy, whatever the training loss."""


class LossOptions(NamedTuple):
    """Which loss; the defaults are plain cross-entropy."""

    smoothing: float = 0.0
    """Label smoothing."""
    gamma: float = 0.0
    """TaiLr: weight of the model's own distribution in the mixture; 0 is cross-entropy."""
    floor: float = 0.0
    """TaiLr: least weight of a token."""


def options_at(step: int, train: TrainConfig) -> LossOptions:
    """The loss of an update, counted from 1: gamma grows in the first `anneal` of them."""
    if train.loss != "tailr":
        return LossOptions(train.label_smoothing)
    chosen = train.tailr
    share = min(1.0, step / chosen.anneal) if chosen.anneal else 1.0
    return LossOptions(train.label_smoothing, chosen.gamma * share, chosen.floor)


def tailr_weights(log_p: Tensor, gamma: float, floor: float = 0.0) -> Tensor:
    """Weights of TaiLr (Ji et al. 2023) for tokens of these log-probabilities, of the same shape.

    max(floor, p / (gamma + (1 - gamma) p)), from log p, so that no small p is lost.  The loss is
    -weight * log p with the weight as a constant; where floor is 0, it has the gradient of
    -log(gamma + (1 - gamma) p) / (1 - gamma).
    """
    if gamma == 0:
        return torch.ones_like(log_p)
    model = log_p + math.log1p(-gamma) if gamma < 1 else torch.full_like(log_p, -math.inf)
    mixture = torch.logaddexp(model, torch.full_like(log_p, math.log(gamma)))
    return (log_p - mixture).exp().clamp(floor, 1.0)


class _SmoothedLoss(torch.autograd.Function):
    """Projection, label-smoothed loss and both gradients in one pass over row chunks.

    The [tokens, vocabulary] matrix exists a chunk at a time only, and the gradient is formed while
    a chunk is in cache.  `reference` in the tests is the plain composition.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, options: LossOptions
    ) -> tuple[Tensor, Tensor]:
        """Hidden [N, W], weight [V, W], targets [N] -> total, nll (sums)."""
        smoothing, gamma, floor = options
        wide = torch.promote_types(hidden.dtype, torch.float32)
        needs = any(ctx.needs_input_grad[:2])
        grad_hidden = torch.empty_like(hidden) if needs else None
        sums = torch.zeros(3, dtype=wide, device=hidden.device)
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
            weights = tailr_weights(log_p, gamma, floor)
            sums += torch.stack(((weights * log_p).sum(), log_p.sum(), norm.sum()))
            if grad_hidden is None or grad_weight is None:
                continue
            if gamma:
                gradient *= (1 - smoothing) * weights + smoothing  # TaiLr weights the target's part
            gradient.scatter_add_(1, y, (smoothing - 1) * weights)  # less the target's share
            narrow = gradient.to(hidden.dtype)
            grad_hidden[part] = product(narrow, weight.t(), added)  # `added`: the part of smoothing
            grad_weight += product(h.t(), narrow.t())  # [W, V]
        weighted, log_p, norm = sums.unbind()
        total, nll = (smoothing - 1) * weighted, -log_p
        if smoothed is not None:
            total = total + smoothing * norm + all_hidden @ smoothed  # smoothing x mean of -log p
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
    options: LossOptions = LossOptions(),  # noqa: B008 - a tuple of numbers
) -> Losses:
    """Label-smoothed cross-entropy or TaiLr of softmax(hidden weight^T).

    Smoothing (Szegedy et al. 2016, section 7) gives the target 1 - smoothing + smoothing / V and every other entry
    smoothing / V; TaiLr weights the part of the target. Leave pads out before the call.
    """
    sums = _SmoothedLoss.apply(hidden, weight, targets, options)  # type: ignore[no-untyped-call]
    return Losses(*sums)
