"""Dropout whose masks are cheap on a CPU."""

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
        if x.device.type != "cpu" or x.is_meta or torch.compiler.is_compiling():
            return F.dropout(x, self.rate)
        dropped = min(255, max(1, round(self.rate * 256)))
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), 2**63 - 1)
        draws = words.view(torch.uint8)[: x.numel()].view(x.shape)
        # written as x's type at once: torch is slow at turning truth values into numbers
        stays = torch.ge(draws, dropped, out=torch.empty_like(x, requires_grad=False))
        return x * stays.mul_(256 / (256 - dropped))

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
