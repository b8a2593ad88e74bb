"""Scaled dot product: A = softmax(q k^T / sqrt(D)).

The attention of the Transformer. Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1.

Worked number: D = 4, q = (2, 0, 0, 0), keys (0, 0, 0, 0) and (ln 3, 0, 0, 0) score 0 and ln 3, so the weights are 1/4,
3/4.
"""

import math

import torch
from torch import Tensor

from attnkit.attention import Mask, Shape, one_head
from attnkit.mechanisms.dot import Dot


class ScaledDot(Dot):
    """softmax(q k^T / sqrt(D)) v; cost T*S*D. For `key_heads` see `dot`."""

    @property
    def scale(self) -> float:
        return float(self.shape.head_width**-0.5)

    def key_length(self) -> float:
        """Return sqrt(D), which cancels the scale."""
        return math.sqrt(self.shape.head_width)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=4, max_length=2))
        q, k = one_head((2, 0, 0, 0)), one_head((0, 0, 0, 0), (math.log(3), 0, 0, 0))
        mask = Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1)
        return mechanism.weights(q, k, k, mask), one_head((0.25, 0.75))
