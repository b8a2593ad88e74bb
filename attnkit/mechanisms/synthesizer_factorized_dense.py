"""Factorized Dense Synthesizer: A = softmax(C), C composed of two short rows, a b = N.

A = relu(q) W_A + b_A has a entries, B = relu(q) W_B + b_B has b, and each column of scores is a product of two:
`layout: outer` C[j] = A[j div b] B[j mod b]; `layout: tile` C[j] = A[j mod a] B[j mod b]. The source tiles both rows,
which repeats after lcm(a, b) columns (with a = b only a of the N scores differ), so the outer product, in which no two
columns share a pair, is the default. `factors` is [a, b]; by default a is the largest divisor of N up to sqrt(N). N is
`data.max_length` + 1 (twice that in a model of shape decoder), so `max_length: 255` gives 16 x 16, while a prime N
leaves 1 x N; longer sequences are refused. `reads` selects the input of q, as in synthesizer-dense; parameters per
head beyond the values: D W + D (a + b), or with `reads: slice` D^2 + D (a + b). Source: Tay et al. 2021, "Synthesizer:
Rethinking Self-Attention in Transformer Models", "Factorized Dense"; outer: Su 2020 (spaces.ac.cn/archives/7430).

Worked number: A = (1, 2), B = (3, 5): outer 3, 5, 6, 10 and tile 3, 10, 3, 10.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import Mask, Shape, one_head
from attnkit.attention.position_tables import (
    PositionScored,
    check_length,
    columns_at,
    first_layer,
    per_head,
    position_count,
    xavier,
)
from attnkit.errors import UsageError


def default_factors(length: int) -> tuple[int, int]:
    """Return the two factors of a length that are nearest to its square root, the smaller first."""
    small = next(a for a in range(math.isqrt(length), 0, -1) if length % a == 0)
    return small, length // small


def compose(
    left: Float[Tensor, "*n a"], right: Float[Tensor, "*n b"], layout: str, length: int
) -> Float[Tensor, "*n S"]:
    """Return the first `length` products of two short rows in one of the two layouts."""
    if layout == "outer":
        b = right.shape[-1]
        blocks = left[..., : -(-length // b), None] * right[..., None, :]
        return blocks.flatten(-2)[..., :length]
    once = [1] * (left.dim() - 1)
    left, right = (row.repeat(*once, -(-length // row.shape[-1])) for row in (left, right))
    return left[..., :length] * right[..., :length]


class SynthesizerFactorizedDense(PositionScored):
    """softmax(A[j div b] B[j mod b]) v; cost T*S*D, no keys."""

    uses = "qv"
    facts_with = {"reads": {"slice": {"uses": "xv"}}}
    cost = "T*S*D"

    def __init__(
        self,
        shape: Shape,
        *,
        factors: tuple[int, int] | None = None,
        layout: Literal["outer", "tile"] = "outer",
        reads: Literal["layer", "slice"] = "layer",
    ) -> None:
        super().__init__(shape)
        word = "synthesizer-factorized-dense"
        self.layout = layout
        length = shape.max_length
        factors = default_factors(length) if factors is None else factors
        if len(factors) != 2 or min(factors) < 1 or math.prod(factors) != length:
            a, b = default_factors(length)
            raise UsageError(
                f"{word}: factors must be two numbers whose product is {length}, the positions of the layer, "
                f"such as [{a}, {b}], got {list(factors)}"
            )
        heads, width = shape.heads, shape.head_width
        self.first = first_layer(reads, heads, width)
        self.left, self.right = (nn.Parameter(xavier(heads, width, size)) for size in factors)
        self.left_bias, self.right_bias = (nn.Parameter(torch.zeros(heads, size)) for size in factors)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "B H T S"]:
        """Return the columns of C at the positions of the keys."""
        assert isinstance(self.limit, int)
        check_length(mask, self.limit, "synthesizer-factorized-dense")
        x, length = F.relu(self.first(q)), position_count(mask, self.limit)
        # skip entries that no column up to `length` reads
        b = min(length, self.right.shape[2])
        a = -(-length // b) if self.layout == "outer" else min(length, self.left.shape[2])
        left = per_head(x, self.left[..., :a], self.left_bias[:, :a])
        right = per_head(x, self.right[..., :b], self.right_bias[:, :b])
        return columns_at(compose(left, right, self.layout, length), mask)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        rows = one_head((1, 2)), one_head((3, 5))
        got = torch.cat([compose(*rows, layout, 4) for layout in ("outer", "tile")], 2)
        return got, one_head((3, 5, 6, 10), (3, 10, 3, 10))
