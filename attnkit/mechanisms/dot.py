"""Dot product: A = softmax(q k^T).

Unscaled; sharp when the head width is large.  Source: the basic form of Luong et al. 2015,
"Effective Approaches to Attention-based Neural Machine Translation", equation 8.

Worked number: q = (1, 0), keys (0, 1) and (ln 3, 0) score 0 and ln 3, so the weights are 1/4, 3/4.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask, Scored

PLAIN_UP_TO = 256 * 256
"""On a CPU the plain products beat the fused kernel up to about this many scores a head."""


def fused_dot(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H S D"],
    v: Float[Tensor, "B H S E"],
    mask: Mask,
    scale: float,
) -> Float[Tensor, "B H T E"] | None:
    """softmax(scale q k^T) v by torch's fused kernel, where that is the faster way."""
    if q.device.type == "cpu" and q.shape[2] * k.shape[2] <= PLAIN_UP_TO:
        return None
    packed = mask.layout == "packed"
    causal = packed and mask.causal and q.shape[2] == k.shape[2]
    allowed = None if packed and (causal or not mask.causal) else mask.dense()
    y = F.scaled_dot_product_attention(q, k, v, allowed, is_causal=causal, scale=scale)
    if allowed is not None and q.device.type != "cpu":
        # not every GPU kernel answers a query without keys with zeros
        y = torch.where(allowed.any(-1, keepdim=True), y, 0)
    return y


class Dot(Scored):
    """softmax(q k^T) v; cost T*S*D."""

    def scores(
        self, q: Float[Tensor, "B H T D"] | None, k: Float[Tensor, "B H S D"] | None, mask: Mask
    ) -> Float[Tensor, "B H T S"]:
        """q k^T."""
        assert q is not None
        assert k is not None
        return q @ k.transpose(-1, -2)

    def fused(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S E"],
        mask: Mask,
    ) -> Float[Tensor, "B H T E"] | None:
        """Torch's fused kernel."""
        return fused_dot(q, k, v, mask, 1.0)
