"""Gaussian kernel: A = softmax(-|q - k|^2 / 2), Nadaraya-Watson regression on the keys.

Computed as q k^T - |q|^2 / 2 - |k|^2 / 2, in float32 at least: the squares are larger than their
difference, and 16 bits would lose it.  No parameters beyond the projections.  Unscaled; like `dot`
sharp when the head width is large.  Source: Watson 1964, "Smooth Regression Analysis", and
Nadaraya 1964, "On Estimating Regression"; as attention in "Dive into Deep Learning", section 11.2.

Worked number: waists 51, 56, 58 with weights 40, 43, 48, and a waist of 57: the scores are -18,
-1/2, -1/2, the weights 1.3e-8, .5, .5, and the answer is 45.5.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask, Scored, Shape, one_head
from attnkit.mechanisms.dot import fused_dot
from attnkit.ops.fast_cpu import few_scores
from attnkit.ops.linear_attention import widest

PLAIN_UP_TO = 32 * 32
"""Scores a head up to which the plain products beat the fused kernel on a CPU."""


def half_square(x: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T 1"]:
    """|x|^2 / 2."""
    return x.square().sum(-1, keepdim=True) / 2


class Gaussian(Scored):
    """softmax(-|q - k|^2 / 2) v; cost T*S*D."""

    cost = "T*S*D"

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "B H T S"]:
        """-|q - k|^2 / 2 by its three terms."""
        q, k = (x.to(widest(x.dtype)) for x in (q, k))
        scores = q @ k.transpose(-1, -2)
        return scores.sub_(half_square(q)).sub_(half_square(k).transpose(-1, -2))

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        """Torch's fused kernel with |k|^2 / 2 in channels of their own; |q|^2 cancels in a row.

        16-bit types need three channels: the square is then a sum of three short floats.
        """
        if few_scores(q, k, PLAIN_UP_TO) or v.shape[-1] != k.shape[-1]:
            return None
        terms = []
        rest = -half_square(k.to(widest(k.dtype)))
        for _ in range(1 if k.dtype in (torch.float32, torch.float64) else 3):
            terms.append(rest.to(k.dtype))
            rest = rest - terms[-1].to(rest.dtype)  # what rounding has left
        # kernels want one width for all three, a multiple of 8
        spare = -(k.shape[-1] + len(terms)) % 8
        k = F.pad(torch.cat((k, *terms), -1), (0, spare))
        q = F.pad(F.pad(q, (0, len(terms)), value=1.0), (0, spare))  # 1 adds each term
        y = fused_dot(q, k, F.pad(v, (0, k.shape[-1] - v.shape[-1])), mask, 1.0)
        return None if y is None else y[..., : v.shape[-1]]

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=3))
        q, k, v = one_head((57,)), one_head((51,), (56,), (58,)), one_head((40,), (43,), (48,))
        mask = Mask.cross(torch.ones(1, 3, dtype=torch.bool), 1)
        far, near = math.exp(-18), math.exp(-0.5)
        exact = (40 * far + 91 * near) / (far + 2 * near)  # 45.49999993
        return mechanism(q, k, v, mask).y, one_head((exact,))
