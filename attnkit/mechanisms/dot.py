"""Dot product: A = softmax(q k^T).

Unscaled; sharp if the head width is large. Source: Luong et al. 2015, "Effective Approaches to Attention-based Neural
Machine Translation", equation 8, the form called dot.

Worked number: q = (1, 0), keys (0, 1) and (ln 3, 0) score 0 and ln 3, so the weights are 1/4, 3/4.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask, Scored, Shape, dot_scores, one_head
from attnkit.errors import UsageError
from attnkit.ops.fast_cpu import few_scores


def fused_dot(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S E"], mask: Mask, scale: float
) -> Float[Tensor, "B H T E"] | None:
    """Compute softmax(scale q k^T) v by torch's fused kernel; None if plain products are faster."""
    if few_scores(q, k):
        return None
    packed = mask.layout == "packed"
    causal = packed and mask.causal and q.shape[2] == k.shape[2]  # is_causal aligns top left
    allowed = None if packed and (causal or not mask.causal) else mask.dense()
    grouped = k.shape[1] != q.shape[1]
    y = F.scaled_dot_product_attention(q, k, v, allowed, is_causal=causal, scale=scale, enable_gqa=grouped)
    if allowed is not None and q.device.type != "cpu":
        # not every GPU kernel returns zeros for a query without keys
        y = torch.where(allowed.any(-1, keepdim=True), y, 0)
    return y


class Dot(Scored):
    """softmax(q k^T) v; cost T*S*D.

    With fewer `key_heads` than heads, neighboring heads share keys and values: grouped-query attention (Ainslie et
    al. 2023), or with 1 multi-query attention (Shazeer 2019).
    """

    homogeneous = True

    def __init__(self, shape: Shape, *, key_heads: int | None = None) -> None:
        super().__init__(shape)
        self.key_heads = shape.heads if key_heads is None else key_heads
        if self.key_heads < 1 or shape.heads % self.key_heads:
            raise UsageError(f"key_heads must divide heads ({shape.heads}), got {key_heads}")

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return 1.0

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "B H T S"]:
        return dot_scores(q if self.scale == 1 else q * self.scale, k)

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        return fused_dot(q, k, v, mask, self.scale)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=2, max_length=2))
        q, k = one_head((1, 0)), one_head((0, 1), (math.log(3), 0))
        mask = Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1)
        return mechanism.weights(q, k, k, mask), one_head((0.25, 0.75))
