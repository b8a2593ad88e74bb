"""Scaled dot product: A = softmax(q k^T / sqrt(D)).

The attention of the Transformer.  Source: Vaswani et al. 2017, "Attention Is All You Need",
equation 1.

Worked number: D = 4, q = (2, 0, 0, 0), keys (0, 0, 0, 0) and (ln 3, 0, 0, 0) score 0 and ln 3, so
the weights are 1/4, 3/4.
"""

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.attention import Mask, Scored, Shape, dot_scores, one_head
from attnkit.mechanisms.dot import fused_dot, grouped


class ScaledDot(Scored):
    """softmax(q k^T / sqrt(D)) v; cost T*S*D.  For `key_heads` see `dot`."""

    homogeneous: ClassVar[bool] = True

    def __init__(self, shape: Shape, *, key_heads: int | None = None) -> None:
        super().__init__(shape)
        self.key_heads = grouped(shape, key_heads)

    def key_length(self) -> float:
        """sqrt(D), which cancels the scale."""
        return math.sqrt(self.shape.head_width)

    def scores(
        self, q: Float[Tensor, "B H T D"] | None, k: Float[Tensor, "B H S D"] | None, mask: Mask
    ) -> Float[Tensor, "B H T S"]:
        """q k^T / sqrt(D)."""
        assert q is not None
        assert k is not None
        return dot_scores(q * q.shape[-1] ** -0.5, k)

    def fused(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S E"],
        mask: Mask,
    ) -> Float[Tensor, "B H T E"] | None:
        """Torch's fused kernel."""
        return fused_dot(q, k, v, mask, q.shape[-1] ** -0.5)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        """See `Attention.worked_number`."""
        mechanism = cls(Shape(heads=1, head_width=4, max_length=2))
        q, k = one_head((2, 0, 0, 0)), one_head((0, 0, 0, 0), (math.log(3), 0, 0, 0))
        mask = Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1)
        return mechanism.weights(q, k, k, mask), one_head((0.25, 0.75))
