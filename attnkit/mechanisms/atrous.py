"""Atrous attention: A = softmax(q k^T / sqrt(D)) over |i - j| mod rate = 0.

Also called dilated attention. Each query attends to every `rate`-th token, counted from itself; distances are between
real tokens. Sequences are computed as `rate` dense attentions over sub-sequences. Source: Su 2019, "Born to be saving"
(spaces.ac.cn/archives/6853), after the strided part of Child et al. 2019, "Generating Long Sequences with Sparse
Transformers".

Worked number: D = 4, rate 2, scores 0, 0, ln 3 for the last of three tokens: its neighbor is hidden, so the weights
are 1/4, 0, 3/4.
"""

import math

import torch
from torch import Tensor

from attnkit.attention import Mask, Shape, at_least, one_head
from attnkit.attention.sparse_pattern import Pattern


class Atrous(Pattern):
    """softmax(q k^T / sqrt(D)) v over the keys at multiples of `rate`; cost T*T*D / rate."""

    cost = "T*S*D/rate"

    def __init__(self, shape: Shape, *, rate: int = 4) -> None:
        super().__init__(shape, 0, at_least("atrous", "rate", rate, 2))

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=4, max_length=3), rate=2)
        q = one_head((0, 0, 0, 0), (0, 0, 0, 0), (2, 0, 0, 0))
        k = one_head((0, 0, 0, 0), (0, 0, 0, 0), (math.log(3), 0, 0, 0))
        mask = Mask.packed(3, torch.device("cpu"), causal=False)
        return mechanism.weights(q, k, k, mask)[:, :, 2:], one_head((0.25, 0, 0.75))
