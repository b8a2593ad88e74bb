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
"""Number of logits in memory at once (16 MB in float32), small enough for the last-level cache of a CPU."""
MIN_TOKENS = 2
"""Minimum number of tokens of a chunk as a multiple of the width, whatever the vocabulary size.

Each chunk reads and writes the gradient of the whole weight matrix [V, W], which would otherwise take longer than its
matrix products. The logits then take twice the memory of that gradient.
"""


class Losses(NamedTuple):
    """Sums over tokens in nats, to be divided once by the number of tokens of all micro-batches."""

    total: Tensor
    """Training loss, the only differentiable field."""
    nll: Tensor
    """Plain cross-entropy, whatever the training loss; not differentiable."""


class LossOptions(NamedTuple):
    """Options of the training loss; the defaults are plain cross-entropy."""

    smoothing: float = 0.0
    gamma: float = 0.0
    """TaiLr: weight of the one-hot target in the mixture with the model's distribution; 0 is cross-entropy."""
    floor: float = 0.0
    """TaiLr: minimum weight of a token."""


def options_at(step: int, train: TrainConfig) -> LossOptions:
    """Return the loss options of update `step` (1-based); gamma grows linearly over the first `anneal` updates."""
    if train.loss != "tailr":
        return LossOptions(train.label_smoothing)
    tailr = train.tailr
    share = min(1.0, step / tailr.anneal) if tailr.anneal else 1.0
    return LossOptions(train.label_smoothing, tailr.gamma * share, tailr.floor)


def tailr_weights(log_p: Tensor, gamma: float, floor: float = 0.0) -> Tensor:
    """Return the TaiLr weights (Ji et al. 2023) of tokens with log-probabilities `log_p`, in the same shape.

    The weight is max(floor, p / (gamma + (1 - gamma) p)), computed from log p so that a small p does not underflow.
    The loss is -weight * log p with a constant weight; if floor is 0, it has the gradient of
    -log(gamma + (1 - gamma) p) / (1 - gamma).
    """
    if gamma == 0:
        return torch.ones_like(log_p)
    model = log_p + math.log1p(-gamma) if gamma < 1 else torch.full_like(log_p, -math.inf)
    mixture = torch.logaddexp(model, torch.full_like(log_p, math.log(gamma)))
    return (log_p - mixture).exp().clamp(floor, 1.0)


class _SmoothedLoss(torch.autograd.Function):
    """Projection, label-smoothed loss and both gradients in one pass over chunks of rows.

    Only one chunk of the [tokens, vocabulary] logits exists at a time, and its gradient is computed while it is in
    cache. `reference` in the tests is the plain composition.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, options: LossOptions
    ) -> tuple[Tensor, Tensor]:
        """Return the summed total and nll for hidden [N, W], weight [V, W] and targets [N]."""
        smoothing, gamma, floor = options
        accumulator = torch.promote_types(hidden.dtype, torch.float32)
        needs_grad = any(ctx.needs_input_grad[:2])
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        sums = torch.zeros(3, dtype=accumulator, device=hidden.device)
        size, width = weight.shape
        # smoothing adds the same constant to the gradient of every logit, so sums of hidden and weight are enough
        share = -smoothing / size
        hidden_sum = hidden.sum(0, dtype=accumulator)  # [W]
        smoothed = share * weight.sum(0, dtype=accumulator) if smoothing else None  # [W]
        bias = None if smoothed is None else smoothed.to(weight.dtype)
        grad_weight = (share * hidden_sum).expand(size, width).clone().t() if needs_grad else None
        rows = max(1, CHUNK // size, MIN_TOKENS * width)
        for first in range(0, hidden.shape[0], rows):
            chunk = slice(first, first + rows)
            h, y = hidden[chunk], targets[chunk, None]
            logits = product(h, weight).to(accumulator)
            # log-sum-exp = maximum logit - log of its probability, which is at least 1 / V
            target_logits, maximum = logits.gather(1, y), logits.amax(-1, keepdim=True)  # [rows, 1]
            gradient = torch.softmax(logits, -1, out=logits)  # probabilities at first, in the memory of the logits
            lse = maximum - gradient.amax(-1, keepdim=True).log()
            log_p = target_logits - lse
            weights = tailr_weights(log_p, gamma, floor)
            sums += torch.stack(((weights * log_p).sum(), log_p.sum(), lse.sum()))
            if grad_hidden is None or grad_weight is None:
                continue
            if gamma:
                gradient *= (1 - smoothing) * weights + smoothing  # TaiLr weights only the target's part
            gradient.scatter_add_(1, y, (smoothing - 1) * weights)  # minus the one-hot target
            grad_logits = gradient.to(hidden.dtype)
            grad_hidden[chunk] = product(grad_logits, weight.t(), bias)  # `bias`: the constant of smoothing
            grad_weight += product(h.t(), grad_logits.t())  # [W, V]
        weighted, log_p, lse = sums.unbind()
        total, nll = (smoothing - 1) * weighted, -log_p
        if smoothed is not None:
            total = total + smoothing * lse + hidden_sum @ smoothed  # smoothing * mean of -log p over the vocabulary
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.dtype = weight.dtype
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the stored gradients multiplied by the gradient of the total."""
        grad_hidden, grad_weight = ctx.saved_tensors
        # scaled before the cast: the sum over many tokens may overflow a 16-bit float
        weight = (grad_weight * gradient).to(ctx.dtype).t()
        return grad_hidden * gradient.to(grad_hidden.dtype), weight, None, None


def token_losses(
    hidden: Float[Tensor, "N W"],
    weight: Float[Tensor, "V W"],
    targets: Int[Tensor, " N"],
    options: LossOptions = LossOptions(),  # noqa: B008 - a tuple of numbers
) -> Losses:
    """Return label-smoothed cross-entropy or TaiLr of softmax(hidden weight^T); exclude pads before the call.

    Smoothing (Szegedy et al. 2016, section 7) gives the target 1 - smoothing + smoothing / V and every other entry
    smoothing / V; TaiLr weights only the target's part.
    """
    sums = _SmoothedLoss.apply(hidden, weight, targets, options)  # type: ignore[no-untyped-call]
    return Losses(*sums)
