"""Sparse attention: A = softmax(q k^T / sqrt(D)) over |i - j| <= rate or |i - j| mod rate = 0.

The union of `local` with window = rate and `atrous`: dense nearby, every `rate`-th token farther away; distances are
between real tokens. One softmax covers both sets, and a pair in both counts once. Source: Su 2019, "Born to be saving"
(spaces.ac.cn/archives/6853), after Child et al. 2019, "Generating Long Sequences with Sparse Transformers".

Worked number: with rate 3, eight tokens allow 48 pairs, 28 of them causal; with a causal mask and all scores equal the
eighth token gives 1/5 to the tokens 2, 5, 6, 7, 8.
"""

import torch
from torch import Tensor

from attnkit.attention import Mask, Shape, at_least, one_head
from attnkit.attention.sparse_pattern import Pattern


class Sparse(Pattern):
    """softmax(q k^T / sqrt(D)) v over near keys and every `rate`-th; cost T*D*(T/rate + 2*rate)."""

    cost = "T*S*D/rate + T*rate*D"

    def __init__(self, shape: Shape, *, rate: int = 4) -> None:
        rate = at_least("sparse", "rate", rate, 2)
        super().__init__(shape, rate, rate)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=8), rate=3)
        zeros = one_head((0,)).expand(1, 1, 8, 1)
        mask = Mask.packed(8, torch.device("cpu"), causal=True)
        weights = mechanism.weights(zeros, zeros, zeros, mask)
        return weights[:, :, 7:], one_head((0, 0.2, 0, 0, 0.2, 0.2, 0.2, 0.2))
