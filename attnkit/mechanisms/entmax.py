"""Entmax attention: A = entmax_alpha(q k^T / sqrt(D)), sparse rows that sum to 1.

The weights are max(0, (alpha - 1) s - tau)^(1 / (alpha - 1)), where the threshold tau makes them sum to 1: keys whose
scores are far below the maximum get exactly 0. alpha = 1 is softmax, alpha = 2 sparsemax; larger is sparser. `alpha:
learned` learns one for each head, 1 + sigmoid(a), initially 1.5.

The threshold is found without sorting. For alpha up to 2, Newton's method on the convex function |max(0, z - tau)|_p -
1, with p = 1 / (alpha - 1), converges from below and is exact after a few steps (for alpha = 2 it is Michelot's finite
algorithm); for larger alpha by bisection. Hidden keys are excluded. From about alpha = 3 on, weights near the
threshold lose most digits in float32.

Source: Martins and Astudillo 2016, "From Softmax to Sparsemax"; Peters, Niculae, Martins 2019, "Sparse
Sequence-to-Sequence Models", equation 10; gradients and learned alpha: Correia, Niculae, Martins 2019, "Adaptively
Sparse Transformers", section 3.

Worked number: alpha = 2, D = 1, q = 1, keys 1/2 and 0: tau = -1/4, so the weights are 3/4, 1/4; keys 1, 0 and -1 give
1, 0, 0.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnkit.attention import Mask, Scored, Shape, one_head
from attnkit.attention.mask import readable
from attnkit.errors import UsageError
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.ops.autograd import once_differentiable
from attnkit.ops.linear_attention import widest

NEWTON, BISECTIONS = 16, 60
"""Maximum number of steps of Newton's method and of bisection.

Newton's method stops once a step no longer moves the threshold: for 65,536 keys of many distributions, in float64,
after at most 13 steps. On a GPU all steps run, since checking would wait for the device."""


def entmax_weights(z: Float[Tensor, "b H T S"], alpha: float | Tensor) -> Float[Tensor, "b H T S"]:
    """Return the weights of scores whose maximum in each row is 0; -inf gets the weight 0.

    Rows of only -inf get zeros. `alpha` is a number above 1, or one per head between 1 and 2: [H, 1, 1].
    """
    z, power = (alpha - 1) * z, 1 / (alpha - 1)
    if isinstance(alpha, float) and alpha > 2:
        weights = _by_bisection(z, power)
    else:
        weights = _by_newton(z, power, alpha)
    # corrects the error of the threshold; rows without keys sum to 0 and stay 0
    return weights.div_(weights.sum(-1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny))


def _by_newton(z: Tensor, power: float | Tensor, alpha: float | Tensor) -> Tensor:
    """Return unnormalized weights, with tau [b, H, T, 1] by Newton's method."""
    fixed = alpha if isinstance(alpha, float) else None
    alpha_2, alpha_1_5 = fixed == 2, fixed == 1.5
    tau = torch.full_like(z[..., :1], -1)  # at or below the threshold, as the best key has z = 0
    tiny, tolerance = torch.finfo(z.dtype).tiny, 4 * torch.finfo(z.dtype).eps
    excess = torch.empty_like(z)  # one buffer for all steps: allocation takes longer than the sums
    for _ in range(NEWTON):
        torch.sub(z, tau, out=excess).clamp_min_(0)
        if alpha_2:
            count = (excess > 0).sum(-1, keepdim=True)
            step = (excess.sum(-1, keepdim=True) - 1) / count.clamp_min(1)
        elif alpha_1_5:
            norm = torch.linalg.vector_norm(excess, dim=-1, keepdim=True)  # power 2: Euclidean
            step = (norm - 1) * norm / excess.sum(-1, keepdim=True).clamp_min(tiny)
        else:
            derivative = excess ** (power - 1)
            if fixed is None:  # a learned alpha may round to 2, and 0 ** 0 is 1
                derivative.masked_fill_(excess == 0, 0)
            norm = (derivative * excess).sum(-1, keepdim=True) ** (1 / power)
            derivative = derivative.sum(-1, keepdim=True).clamp_min(tiny)
            step = (norm - 1) * norm ** (power - 1) / derivative
        tau = tau + step.clamp_min(0)  # approaches from below: negative steps are rounding
        if readable(step) and not bool((step > tolerance).any()):
            break
    torch.sub(z, tau, out=excess).clamp_min_(0)
    return excess if alpha_2 else excess.square_() if alpha_1_5 else excess.pow_(power)


def _by_bisection(z: Tensor, power: float | Tensor) -> Tensor:
    """Return unnormalized weights by bisection."""
    low = torch.full_like(z[..., :1], -1)  # as the best key has z = 0, the threshold is in [-1, 0)
    step = torch.ones_like(low)
    for _ in range(BISECTIONS):
        step = step / 2
        enough = ((z - low - step).clamp_min(0) ** power).sum(-1, keepdim=True) >= 1
        low = torch.where(enough, low + step, low)
    weights: Tensor = (z - low).clamp_min(0) ** power
    return weights


class EntmaxWeights(torch.autograd.Function):
    """`entmax_weights` of any scores; saves only the weights for the backward pass."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: float | Tensor) -> Tensor:
        weights = scores
        if scores.numel():  # amax refuses rows without keys
            best = scores.amax(-1, keepdim=True)
            weights = entmax_weights(scores - best.masked_fill(best == -torch.inf, 0), alpha)
        learned = alpha if isinstance(alpha, Tensor) else None
        ctx.save_for_backward(weights, learned)
        ctx.fixed = alpha if learned is None else None
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute the gradients, by d weight_i / d s_j = g_i [i = j] - g_i g_j / sum g with g = weight^(2 - alpha)."""
        weights, learned = ctx.saved_tensors
        alpha = ctx.fixed if learned is None else learned
        if ctx.fixed == 1.5:
            derivative = weights.sqrt()
        else:
            positive = weights > 0  # a power of 0 may be 1 or infinite
            derivative = torch.where(positive, weights.where(positive, 1) ** (2 - alpha), 0)
        total = derivative.sum(-1, keepdim=True).clamp_min_(torch.finfo(grad.dtype).tiny)
        mean = (derivative * grad).sum(-1, keepdim=True) / total
        grad_scores = derivative * (grad - mean)
        if not ctx.needs_input_grad[1]:
            return grad_scores, None
        share = derivative / total
        narrow = alpha - 1
        logs = torch.xlogy(weights, weights)  # 0 for a weight of 0
        by_alpha = (weights - share) / narrow**2  # d weight / d alpha
        by_alpha = by_alpha - (logs - share * logs.sum(-1, keepdim=True)) / narrow
        return grad_scores, (grad * by_alpha).sum_to_size(alpha.shape)


class Entmax(ScaledDot):
    """entmax_alpha(q k^T / sqrt(D)) v; cost T*S*D. For `key_heads` see `dot`."""

    softmax = False
    fused = Scored.fused

    def __init__(self, shape: Shape, *, alpha: float | Literal["learned"] = 1.5, key_heads: int | None = None) -> None:
        super().__init__(shape, key_heads=key_heads)
        if not isinstance(alpha, str) and not 1 <= alpha <= 100:
            raise UsageError(f"entmax: alpha must be at least 1 (softmax) and at most 100, got {alpha}")
        self.alpha = alpha
        self.softmax = alpha == 1
        self.shift = nn.Parameter(torch.zeros(shape.heads)) if alpha == "learned" else None

    def normalize(self, scores: Tensor, mask: Mask, raw_scores: Tensor) -> Float[Tensor, "b H T S"]:
        """Compute entmax over the allowed keys, in at least float32."""
        if self.alpha == 1:
            return super().normalize(scores, mask, raw_scores)
        allowed = self.allowed(mask)
        scores = scores.to(widest(scores.dtype))
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        alpha: float | Tensor
        if self.shift is not None:
            alpha = 1 + self.shift.to(scores.dtype).sigmoid()[:, None, None]
        else:
            alpha = float(self.alpha)
        weights: Tensor = EntmaxWeights.apply(scores, alpha)  # type: ignore[no-untyped-call]
        return weights

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=3), alpha=2)
        q, two, three = one_head((1,)), one_head((0.5,), (0,)), one_head((1,), (0,), (-1,))
        maps = []
        for k in (two, three):
            mask = Mask.cross(torch.ones(1, k.shape[2], dtype=torch.bool), 1)
            maps.append(mechanism.weights(q, k, k, mask))
        return torch.cat(maps, -1), one_head((0.75, 0.25, 1, 0, 0))
