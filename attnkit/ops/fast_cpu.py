"""The gate of the fast forms for CPUs, and the private operators of torch that they call."""

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

PLAIN = bool(os.environ.get("ATTNKIT_PLAIN_KERNELS"))
"""Take plain forms only: for tests, and to find out whether a fast form is at fault."""

PLAIN_UP_TO = 24 * 24
"""Scores a head up to which plain products beat torch's fused attention on a CPU.  A layer of 4
heads of width 32 trains on rows of 28, 64 and 128 tokens 1.1, 1.4 and 1.8 times as fast by it on a
CPU without AVX-512; with it, at 28 as fast, and quickstart's rows of a dozen tokens 3 % slower."""
PLAIN_ELSEWHERE = 256 * 256
"""The same in 16 bits, which some processors multiply in units of their own, in graphs that are
compiled, and where the plain forms are asked for."""

FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"
"""Fused attention.  A query without keys gets zeros, unlike from other fused kernels, and 0 as the
logarithm of its softmax sum."""
FLASH_BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward"
PRODUCT = "mkldnn._linear_pointwise.default"
"""oneDNN's x W^T + b."""
PACK = "mkldnn._reorder_linear_weight.default"
"""The W of `PRODUCT` as oneDNN reads it."""
WEIGHT_GRADIENTS = "aten.mkldnn_linear_backward_weights"
"""oneDNN's gradients of weight and bias."""


@cache
def operator(name: str) -> Any:
    """A private operator of torch; None where this version has none of that name."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)  # of None: None again
    return found


def usable(
    *tensors: Tensor | None, operators: Sequence[str] = (), onednn: bool = False, autocast: bool = False
) -> bool:
    """Whether a fast form may take these tensors (None: absent); its plain form may take any.

    That needs eager code, values on a CPU, at least one of them, and all of `operators`; with
    `onednn` also float32 throughout, and oneDNN switched on.  Under autocast, which would mix types
    in what is added to in place, only forms that say they bear it.
    """
    if PLAIN or torch.compiler.is_compiling() or any(operator(name) is None for name in operators):
        return False
    if not autocast and torch.is_autocast_enabled("cpu"):
        return False
    if onednn and not torch.backends.mkldnn.enabled:
        return False
    return all(
        x is None or (x.device.type == "cpu" and x.numel() > 0 and (x.dtype == torch.float32 or not onednn))
        for x in tensors
    )


def fuses_short(q: Tensor) -> bool:
    """Whether torch's fused attention beats plain products on short texts, on a CPU."""
    return q.element_size() > 2 and not torch.compiler.is_compiling() and not PLAIN


def few_scores(q: Tensor, k: Tensor, least: int = 0) -> bool:
    """Whether plain products are the faster way for queries and keys [B, H, *, D].

    They are for one query a row, which the fused kernel answers row by row; and in full precision
    up to `least` scores a head, where the kernel needs preparations.
    """
    if q.device.type != "cpu":
        return False
    limit = max(least, PLAIN_UP_TO) if fuses_short(q) else PLAIN_ELSEWHERE
    return q.shape[2] == 1 or q.shape[2] * k.shape[2] <= limit
