"""How fast this machine multiplies matrices."""

import torch

from attnkit.device import clock
from attnkit.kernels.onednn import product
from attnkit.models.precision import DTYPES

SIDES, REPEATS = (512, 1024, 2048), 4
"""Sides of the square matrices, and how often each product is made; the fastest counts."""


def peak(precision: str, device: str) -> float:
    """Operations a second (two for each multiplication) of the fastest large product."""
    best = 0.0
    with torch.no_grad():
        for side in SIDES:
            one, two = torch.randn(2, side, side, device=device).to(DTYPES[precision])
            product(one, two)
            for _ in range(REPEATS):
                start = clock(device)
                product(one, two)
                best = max(best, 2 * side**3 / (clock(device) - start))
    return best
