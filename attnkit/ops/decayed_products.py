"""Products of queries and earlier keys under decay, with one rate or a rate for each channel.

With one rate, the product of each pair is multiplied by its decay. With a rate for each channel, the fast
implementation is one matrix product for each block of queries (the whole chunk if decays are mild): queries are
multiplied by e^(total - m) and keys by e^(m - total), where m is the mean of the first and the last `total` of the
block. If the decay within a block would leave the range of float32, and on a GPU, where checking would need
synchronization, m is `total` at the start of the block instead: then both factors are at most 1 for keys before the
block. Keys of the block itself are processed in the same way in smaller blocks, and in the smallest by the plain
implementation, which subtracts logarithms before `exp`, but needs memory for each pair and channel.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.ops import fast_cpu

BLOCK, MIN_BLOCK = 16, 4
"""Number of queries of a block if decays are strong, and of the plain implementation within it."""
RANGE = 120.0
"""Maximum decay within a block, as a logarithm: counted from m it is half, and float32 holds e^60 and e^-60."""


def decayed_products(
    queries: Sequence[Float[Tensor, "*n C D"]], k: Float[Tensor, "*n C D"], total: Float[Tensor, "*n C d"]
) -> list[Float[Tensor, "*n C C"]]:
    """Return sum_d q_id k_jd exp(total_id - total_jd) for j <= i, and 0 for later keys, for each q in `queries`.

    `total` is the cumulative sum of log decays, so it does not increase along the chunk; its width d is D or 1.
    """
    size = total.shape[-2]
    if total.shape[-1] == 1:
        later = torch.ones(size, size, dtype=torch.bool, device=k.device).triu(1)
        # masked before exp: the ratio of a later key may be infinite, and its gradient then NaN
        ratio = (total - total.transpose(-1, -2)).masked_fill(later, -torch.inf).exp()
        return [q @ k.transpose(-1, -2) * ratio for q in queries]
    if fast_cpu.PLAIN or torch.compiler.is_compiling():
        return [plain(q, k, total) for q in queries]
    step = next((n for n in (size, BLOCK) if _mild(total, n)), None)
    if step is None:
        return _blockwise(queries, k, total)
    rows = []
    for start in range(0, size, step):
        end = min(size, start + step)
        block = total[..., start:end, :]
        middle = (block[..., :1, :] + block[..., -1:, :]).detach() / 2  # cancels: no gradient
        decay = (block - middle).exp()
        left = torch.cat([q[..., start:end, :] * decay for q in queries], -2)
        right = k[..., :end, :] * (middle - total[..., :end, :]).exp()
        rows.append(F.pad(left @ right.transpose(-1, -2), (0, size - end)))  # [*n, queries step, C]
    return [product.tril() for product in _regroup(rows, len(queries))]


def _blockwise(queries: Sequence[Tensor], k: Tensor, total: Tensor) -> list[Tensor]:
    """Return `decayed_products` for decays of any strength, without reading values on the host."""
    size = k.shape[-2]
    if size <= MIN_BLOCK:
        return [plain(q, k, total) for q in queries]
    step = MIN_BLOCK if size <= BLOCK else BLOCK
    if missing := -size % step:  # padded with the last total: exp(0 - total) might overflow
        *queries, k = (F.pad(x, (0, 0, 0, missing)) for x in (*queries, k))
        total = torch.cat((total, total[..., -1:, :].expand(*total.shape[:-2], missing, -1)), -2)
    *blocks, key_blocks, decays = (torch.unflatten(x, -2, (-1, step)) for x in (*queries, k, total))
    within = torch.cat(_blockwise(blocks, key_blocks, decays), -2)  # [*n, C / step, queries x step, step]
    rows = []
    for number, block in enumerate(within.unbind(-3)):
        start = number * step
        start_total = decays[..., number, :1, :].detach()  # cancels: no gradient
        decay = (decays[..., number, :, :] - start_total).exp()
        left = torch.cat([q[..., number, :, :] * decay for q in blocks], -2)
        right = k[..., :start, :] * (start_total - total[..., :start, :]).exp()
        row = torch.cat((left @ right.transpose(-1, -2), block), -1)
        rows.append(F.pad(row, (0, size + missing - start - step)))
    return [product[..., :size, :size] for product in _regroup(rows, len(queries))]


def _regroup(rows: Sequence[Tensor], queries: int) -> list[Tensor]:
    """Return a matrix [*n, C, C] for each of the `queries` query tensors, which are stacked in each of `rows`."""
    each = zip(*(row.chunk(queries, -2) for row in rows), strict=True)
    return [torch.cat(parts, -2) for parts in each]


def _mild(total: Float[Tensor, "*n C D"], step: int) -> bool:
    """Return whether the decay within blocks of `step` tokens is known to be at most RANGE."""
    if not fast_cpu.usable(total, autocast=True):  # reading values would synchronize the device
        return False
    size = total.shape[-2]
    ends = [min(size, start + step) - 1 for start in range(0, size, step)]
    decay = total.detach()[..., ::step, :] - total.detach()[..., ends, :]  # [*n, blocks, D]
    return bool((decay <= RANGE).all())


def plain(q: Tensor, k: Tensor, total: Tensor) -> Float[Tensor, "*n C C"]:
    """Return `decayed_products` of one q from differences of `total`, which are never positive."""
    size = q.shape[-2]
    later = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1).unsqueeze(-1)
    ratio = (total.unsqueeze(-2) - total.unsqueeze(-3)).masked_fill(later, -torch.inf).exp()
    return (q.unsqueeze(-2) * k.unsqueeze(-3) * ratio).sum(-1)
