"""Dropout with masks that are cheap to draw on a CPU."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Module):
    """Zero each value with probability `rate` in training, and scale up the others.

    On a CPU the mask is drawn as one random byte per value, several times faster than Bernoulli draws. The rate is
    then rounded to the nearest multiple of 1/256 (at least 1/256, at most 255/256), and the scale is that of the
    rounded rate.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """Return the dropout of x, or of relu(x), which stores a third as much for the backward pass."""
        active = self.training and self.rate > 0
        if not active or x.device.type != "cpu" or torch.compiler.is_compiling():
            x = F.relu(x) if relu else x
            return F.dropout(x, self.rate) if active else x
        threshold = min(255, max(1, round(self.rate * 256)))
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), 2**63 - 1)
        draws = words.view(torch.uint8)[: x.numel()].view(x.shape)  # eight draws per word
        # written in the dtype of x directly: torch is slow at converting bool to numbers
        keep = torch.ge(draws, threshold, out=torch.empty_like(x, requires_grad=False))
        function = _ReluDropout if relu else _Dropout
        y: Tensor = function.apply(x, keep, 256 / (256 - threshold))  # type: ignore[no-untyped-call]
        return y

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def _product(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """Return x * keep * scale, rounded once; a scale in bfloat16 would be off by 0.3 %."""
    return torch.addcmul(x.new_zeros(()), x, keep, value=scale)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        ctx.save_for_backward(keep)
        return _product(x, keep, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return _product(gradient, keep, ctx.scale), None, None


class _ReluDropout(torch.autograd.Function):
    """Dropout of relu(x), which saves y alone for the backward pass: the gradient is 0 where y is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        y = _product(torch.relu(x), keep, scale)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(gradient * ctx.scale, y, 0), None, None
