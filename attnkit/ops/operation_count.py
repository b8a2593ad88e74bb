"""How many operations a step asks for."""

import warnings
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnkit.ops import fast_cpu


def count_operations(step: Callable[[], object]) -> int:
    """Operations of the matrix products and convolutions of a step, by the plain forms.

    Two for each multiplication; the step may compute with tensors without storage.
    """
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
