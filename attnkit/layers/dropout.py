"""Dropout whose masks are cheap on a CPU."""

import math

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
        """Any shape."""
        if not self.training or self.rate == 0:
            return x
        if x.device.type != "cpu" or x.is_meta or torch.compiler.is_compiling():
            return F.dropout(x, self.rate)
        return x * keep_mask(x.shape, self.rate, x.dtype)

    def extra_repr(self) -> str:
        """The rate."""
        return f"rate={self.rate}"


def keep_mask(shape: torch.Size, rate: float, dtype: torch.dtype) -> Tensor:
    """A random mask of 0 and 1 / (1 - rate), from one random byte an element."""
    count = math.prod(shape)
    dropped = min(255, max(1, round(rate * 256)))
    words = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), 2**63 - 1)
    kept = words.view(torch.uint8)[:count].view(shape) >= dropped
    return kept.to(dtype).mul_(256 / (256 - dropped))
