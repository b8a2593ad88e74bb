"""Conditions of the fast implementations for CPUs, and the private operators of torch that they call."""

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

PLAIN = bool(os.environ.get("ATTNKIT_PLAIN_KERNELS"))
"""Whether only plain implementations are used: for tests, and to find out whether a fast one is at fault."""

PLAIN_UP_TO = 24 * 24
"""Maximum number of scores per head for which plain products are faster than torch's fused attention on a CPU. With
fused attention, a layer of 4 heads of width 32 trains 1.1, 1.4 and 1.8 times as fast on rows of 28, 64 and 128 tokens
on a CPU without AVX-512; with AVX-512 equally fast at 28 tokens, and 3 % slower on quickstart's rows of 12."""
PLAIN_ELSEWHERE = 256 * 256
"""Maximum of the same in 16 bits, for which some processors have special multiplication units, in compiled graphs, and
under PLAIN."""

FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"
"""Fused attention; returns the output and the log-sum-exp of the scores. Unlike in other fused kernels, both are 0 for
a query without visible keys."""
FLASH_BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward"
PRODUCT = "mkldnn._linear_pointwise.default"
"""oneDNN's x W^T + b."""
PACK = "mkldnn._reorder_linear_weight.default"
"""Conversion of the W of `PRODUCT` to oneDNN's layout."""
WEIGHT_GRADIENTS = "aten.mkldnn_linear_backward_weights"
"""oneDNN's gradients of weight and bias."""


@cache
def operator(name: str) -> Any:
    """Return a private operator of torch; None if this version of torch does not have it."""
    result: Any = torch.ops
    for part in name.split("."):
        result = getattr(result, part, None)  # None has no such attribute either
    return result


def usable(
    *tensors: Tensor | None, operators: Sequence[str] = (), onednn: bool = False, autocast: bool = False
) -> bool:
    """Return whether a fast implementation can be used for these tensors (None: absent).

    It needs eager mode, non-empty tensors on a CPU, all of `operators` and, with `onednn`, float32 and oneDNN enabled.
    `autocast` declares that it works under autocast, which would mix dtypes in in-place additions.
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
    """Return whether torch's fused attention is faster than plain products for short sequences on a CPU."""
    return q.element_size() > 2 and not torch.compiler.is_compiling() and not PLAIN


def few_scores(q: Tensor, k: Tensor, least: int = 0) -> bool:
    """Return whether plain products are faster than fused attention for queries and keys [B, H, *, D].

    They are for one query per row, since the fused kernel processes rows one by one. `least` raises the maximum number
    of scores per head in full precision, for callers that need additional operations to use the kernel.
    """
    if q.device.type != "cpu":
        return False
    limit = max(least, PLAIN_UP_TO) if fuses_short(q) else PLAIN_ELSEWHERE
    return q.shape[2] == 1 or q.shape[2] * k.shape[2] <= limit
