"""Count of the floating-point operations of a step."""

import warnings
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnkit.ops import fast_cpu


def count_operations(step: Callable[[], object]) -> int:
    """Return the number of operations of the matrix products and convolutions of a step, by plain implementations.

    A multiplication and an addition are two operations. Tensors may be on the meta device.
    """
    plain, fast_cpu.PLAIN = fast_cpu.PLAIN, True  # the counter does not know the operators of fast ones
    counter = FlopCounterMode(display=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # oneDNN's flags warn about Intel GPUs
            with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH), counter:
                step()
    finally:
        fast_cpu.PLAIN = plain
    return int(counter.get_total_flops())
