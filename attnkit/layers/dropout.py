"""Dropout whose masks are cheap on a CPU."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Module):
    """Zero each value with probability `rate` while training, and scale up the rest.

    On a CPU the draw is a random byte a value, several times faster than a Bernoulli draw; the rate
    is then the nearest multiple of 1/256 and the scale matches it exactly.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        if not self._draws_bytes(x):
            return F.dropout(x, self.rate)
        return x * self._factors(x)[0]

    def relu(self, x: Tensor) -> Tensor:
        """As `forward` of relu(x); saves a third as much for the backward pass."""
        y: Tensor
        if not self.training or self.rate == 0 or not self._draws_bytes(x):
            y = self(F.relu(x))
        else:
            y = _ReluDropout.apply(x, *self._factors(x))  # type: ignore[no-untyped-call]
        return y

    def _draws_bytes(self, x: Tensor) -> bool:
        return x.device.type == "cpu" and not torch.compiler.is_compiling()

    def _factors(self, x: Tensor) -> tuple[Tensor, float]:
        """What each value is multiplied by: 0, or the scale, which comes second."""
        dropped = min(255, max(1, round(self.rate * 256)))
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), 2**63 - 1)
        draws = words.view(torch.uint8)[: x.numel()].view(x.shape)
        # written as x's type at once: torch is slow at turning truth values into numbers
        stays = torch.ge(draws, dropped, out=torch.empty_like(x, requires_grad=False))
        scale = float(torch.tensor(256 / (256 - dropped), dtype=x.dtype))
        return stays.mul_(scale), scale

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class _ReluDropout(torch.autograd.Function):
    """relu(x) times factors of 0 or the scale; the gradient needs the result alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        y = torch.relu(x).mul_(factors)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(gradient * ctx.scale, y, 0), None, None
