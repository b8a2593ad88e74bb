"""Products of queries and earlier keys, which decay by one rate or each channel by its own.

With one rate the products are decayed.  With a rate for each channel the fast form is a matrix
product for each block of queries, which is the whole chunk where decays are mild: decays from the
middle of the block go to the queries, their inverses to the keys, which for keys before the block
are decays too.  Where the decay within a block would leave the range of the type, or a GPU would
have to be waited for to know, decays go from the start of the block, so that none is inverted, and
the keys of the block itself take the plain form: differences of logarithms first, at the cost of a
number for each pair and channel.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.kernels import fast_cpu

BLOCK = 16
"""Queries of a product where decays are strong."""
RANGE = 120.0
"""Decay within a block, as a logarithm; float32 bears half of it and its inverse."""


def decayed_products(
    queries: Sequence[Float[Tensor, "*n C D"]],
    k: Float[Tensor, "*n C D"],
    total: Float[Tensor, "*n C d"],
) -> list[Float[Tensor, "*n C C"]]:
    """sum_d q_id k_jd exp(total_id - total_jd) for j <= i, and 0 for later keys, for each q.

    `total` is a running sum of logarithms of decays, so it falls along the chunk; d is D or 1.
    """
    size = total.shape[-2]
    if total.shape[-1] == 1:
        later = torch.ones(size, size, dtype=torch.bool, device=k.device).triu(1)
        ratio = (total - total.transpose(-1, -2)).masked_fill(later, -torch.inf).exp()
        return [q @ k.transpose(-1, -2) * ratio for q in queries]
    if fast_cpu.PLAIN or torch.compiler.is_compiling():
        return [plain(q, k, total) for q in queries]
    step = next((some for some in (size, BLOCK) if _mild(total, some)), None)
    mild, step, rows = step is not None, step or BLOCK, list[Tensor]()
    for start in range(0, size, step):
        own = slice(start, min(size, start + step))
        here, seen = total[..., own, :], own.stop if mild else start
        origin = here[..., :1, :].detach()
        if mild:
            origin = (origin + here[..., -1:, :].detach()) / 2
        left = torch.cat([q[..., own, :] * (here - origin).exp() for q in queries], -2)
        right = k[..., :seen, :] * (origin - total[..., :seen, :]).exp()
        row = left @ right.transpose(-1, -2)
        if not mild:
            near = [plain(q[..., own, :], k[..., own, :], here) for q in queries]
            row = torch.cat((row, torch.cat(near, -2)), -1)
        rows.append(F.pad(row, (0, size - own.stop)))
    each = zip(*(row.chunk(len(queries), -2) for row in rows), strict=True)
    return [torch.cat(parts, -2).tril() for parts in each]


def _mild(total: Float[Tensor, "*n C D"], step: int) -> bool:
    """Whether the decay within blocks of so many tokens is known to be in range."""
    if not fast_cpu.usable(total, autocast=True):
        return False
    size = total.shape[-2]
    ends = [min(size, start + step) - 1 for start in range(0, size, step)]
    fall = total.detach()[..., ::step, :] - total.detach()[..., ends, :]
    return bool((fall <= RANGE).all())


def plain(q: Tensor, k: Tensor, total: Tensor) -> Float[Tensor, "*n C C"]:
    """`decayed_products` from differences, which are never positive."""
    size = q.shape[-2]
    later = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1).unsqueeze(-1)
    ratio = (total.unsqueeze(-2) - total.unsqueeze(-3)).masked_fill(later, -torch.inf).exp()
    return (q.unsqueeze(-2) * k.unsqueeze(-3) * ratio).sum(-1)
