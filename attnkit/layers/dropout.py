"""Dropout whose masks are cheap on a CPU."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Module):
    """Zero each value with probability `rate` while training, and scale up the rest.

    On a CPU the draw is a random byte a value, several times faster than a Bernoulli draw; the rate
    is then the nearest multiple of 1/256 (at least 1/256, at most 255/256), and the scale is that
    of this rate.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """Dropout of x, or of relu(x), which keeps a third as much for the backward pass."""
        active = self.training and self.rate > 0
        if not active or x.device.type != "cpu" or torch.compiler.is_compiling():
            x = F.relu(x) if relu else x
            return F.dropout(x, self.rate) if active else x
        dropped = min(255, max(1, round(self.rate * 256)))
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), 2**63 - 1)
        draws = words.view(torch.uint8)[: x.numel()].view(x.shape)  # eight draws a word
        # written as x's type at once: torch is slow at turning truth values into numbers
        stays = torch.ge(draws, dropped, out=torch.empty_like(x, requires_grad=False))
        kind = _ReluDropout if relu else _Dropout
        y: Tensor = kind.apply(x, stays, 256 / (256 - dropped))  # type: ignore[no-untyped-call]
        return y

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def _product(x: Tensor, stays: Tensor, scale: float) -> Tensor:
    """x, stays and the scale multiplied, rounded once; a scale in bfloat16 would be 0.3 % off."""
    return torch.addcmul(x.new_zeros(()), x, stays, value=scale)


class _Dropout(torch.autograd.Function):
    """x times the scale where it stays."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stays: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        ctx.save_for_backward(stays)
        return _product(x, stays, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (stays,) = ctx.saved_tensors
        return _product(gradient, stays, ctx.scale), None, None


class _ReluDropout(torch.autograd.Function):
    """relu(x) times the scale where it stays; y is kept alone, as the gradient is 0 where y is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stays: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        y = _product(torch.relu(x), stays, scale)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(gradient * ctx.scale, y, 0), None, None
