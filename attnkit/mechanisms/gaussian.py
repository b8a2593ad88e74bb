"""Gaussian kernel: A = softmax(-|q - k|^2 / 2), Nadaraya-Watson regression on the keys.

Computed as q k^T - |q|^2 / 2 - |k|^2 / 2, in at least float32: the squares are larger than their difference, which 16
bits would lose. No parameters beyond the projections. Unscaled; like `dot` sharp if the head width is large. Source:
Watson 1964, "Smooth Regression Analysis", and Nadaraya 1964, "On Estimating Regression"; as attention in "Dive into
Deep Learning", section 11.2.

Worked number: waists 51, 56, 58 with weights 40, 43, 48, and a waist of 57: the scores are -18, -1/2, -1/2, the
weights 1.3e-8, .5, .5, and the output is 45.5.
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
"""Number of scores per head up to which plain products are faster than the fused kernel on a CPU."""


def half_square(x: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T 1"]:
    """Return |x|^2 / 2."""
    return x.square().sum(-1, keepdim=True) / 2


class Gaussian(Scored):
    """softmax(-|q - k|^2 / 2) v; cost T*S*D."""

    cost = "T*S*D"

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "B H T S"]:
        q, k = (x.to(widest(x.dtype)) for x in (q, k))
        scores = q @ k.transpose(-1, -2)
        return scores.sub_(half_square(q)).sub_(half_square(k).transpose(-1, -2))

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        """Use torch's fused kernel, with |k|^2 / 2 in additional channels; |q|^2 cancels within a row.

        16-bit types need three channels: the square is then a sum of three 16-bit numbers.
        """
        if few_scores(q, k, PLAIN_UP_TO) or v.shape[-1] != k.shape[-1]:
            return None
        terms = []
        remainder = -half_square(k.to(widest(k.dtype)))
        for _ in range(1 if k.dtype in (torch.float32, torch.float64) else 3):
            terms.append(remainder.to(k.dtype))
            remainder = remainder - terms[-1].to(remainder.dtype)  # the rounding error
        # kernels need one width for q, k and v, a multiple of 8
        padding = -(k.shape[-1] + len(terms)) % 8
        k = F.pad(torch.cat((k, *terms), -1), (0, padding))
        q = F.pad(F.pad(q, (0, len(terms)), value=1.0), (0, padding))  # times 1 for each term
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
