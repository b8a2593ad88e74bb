"""How fast this machine multiplies matrices, and how much of that a step asks for."""

import warnings
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnkit.device import clock
from attnkit.kernels import fast_cpu
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


def operations(step: Callable[[], object]) -> int:
    """Operations of the matrix products and convolutions of a step, by the plain forms."""
    plain, fast_cpu.PLAIN = fast_cpu.PLAIN, True  # torch counts its own operators only
    counter = FlopCounterMode(display=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # oneDNN's flags warn of Intel's GPUs
            with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH), counter:
                step()
    finally:
        fast_cpu.PLAIN = plain
    return int(counter.get_total_flops())
