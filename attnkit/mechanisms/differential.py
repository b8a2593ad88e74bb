"""Differential attention: A = (1 - l0) (softmax(s1) - l softmax(s2)), s1 and s2 of half heads.

The channels of queries and keys are split into halves, each with its own scores, q k^T / sqrt(D / 2). The second map,
times l, is subtracted from the first, so that what both have in common cancels. l = exp(a1 b1) - exp(a2 b2) + l0 with
four learned vectors of D / 2 channels, drawn from N(0, 0.1), that the heads of a layer share. `lambda_init` is l0: a
number, or `by-depth`, 0.8 - 0.6 exp(-0.3 depth) with the index of the layer from 0 as depth. Entries may be negative,
and rows sum to (1 - l)(1 - l0).

The norm of each head before the factor 1 - l0 in the source is not included, as it is not linear in the values. The
source also halves the number of heads, to keep values twice as wide as a half; here `heads` is the number in the
recipe. Rotary positions rotate each half by itself. A running sum of scores (`residual_scores`) carries both maps of a
head. Source: Ye et al. 2024, "Differential Transformer", equations 1 to 3.

Worked number: D = 2, l = 1/5 and l0 = 1/5 (all vectors 0, depth 0), q = (1, 1), keys (0, ln 3) and (ln 3, 0): s1 = (0,
ln 3) and s2 = (ln 3, 0) give softmaxes (1/4, 3/4) and (3/4, 1/4), so the weights are 4/5 (1/4 - 3/20) = .08 and 4/5
(3/4 - 1/20) = .56.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import AttentionCall, Mask, Out, Shape, dot_scores, one_head, visible_softmax
from attnkit.errors import UsageError
from attnkit.mechanisms.dot import fused_dot
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.ops.fast_cpu import few_scores
from attnkit.ops.score_chunks import ScoreChunk, Weighing, in_chunks, softmax_gradient

PLAIN_UP_TO = 48 * 48
"""Number of scores per head up to which plain products are faster than the fused kernel on a CPU."""


def halves(x: Float[Tensor, "B H T D"]) -> Float[Tensor, "B 2H T D/2"]:
    """Return the first halves of all heads, then the second halves."""
    return torch.cat(x.chunk(2, -1), 1)


def for_both_maps(x: Tensor | None, heads: int) -> Tensor | None:
    """Repeat what is added to the scores of each head for both of its maps."""
    return x.repeat(1, 2, 1, 1) if x is not None and x.shape[1] == heads else x


class DifferenceOfSoftmaxes(Weighing):
    """scale (first - factor second), chunk by chunk; accumulates the gradient of the factor."""

    masked, tensors = 2, 3

    def __init__(self, scale: float, factor: Float[Tensor, ""]) -> None:
        self.scale, self.factor = scale, float(factor)
        self.slope = torch.zeros_like(factor)

    def weigh(self, scores: Sequence[Tensor], chunk: ScoreChunk) -> tuple[Tensor, ...]:
        first, second = (x.softmax(-1) for x in scores)
        weights = torch.mul(first, self.scale, out=scores[0])
        return weights.sub_(second, alpha=self.scale * self.factor), first, second

    def score_gradients(self, kept: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
        _, first, second = kept
        self.slope -= self.scale * torch.dot(grad.flatten(), second.flatten())
        grad_first, grad_second = (softmax_gradient(x, grad) for x in (first, second))
        return [grad_first.mul_(self.scale), grad_second.mul_(-self.scale * self.factor)]

    def parameter_gradient(self) -> Tensor:
        slope, self.slope = self.slope, torch.zeros_like(self.slope)  # a graph may run backward again
        return slope


class Differential(ScaledDot):
    """Difference of two softmaxes; cost T*S*D. For `key_heads` see `dot`."""

    normalized = False
    rotary_parts = 2

    def __init__(
        self, shape: Shape, *, lambda_init: float | Literal["by-depth"] = "by-depth", key_heads: int | None = None
    ) -> None:
        super().__init__(shape, key_heads=key_heads)
        if shape.head_width % 2:
            raise UsageError(f"differential needs heads of an even width, got {shape.head_width}")
        if lambda_init == "by-depth":
            lambda_init = 0.8 - 0.6 * math.exp(-0.3 * shape.depth)
        if not 0 <= lambda_init < 1:
            raise UsageError(f"differential: lambda_init must be at least 0 and below 1, got {lambda_init}")
        self.lambda_init = float(lambda_init)
        self.vectors = nn.Parameter(torch.randn(2, 2, shape.head_width // 2) * 0.1)

    def cached_keys(self, k: Float[Tensor, "B H S D"]) -> Float[Tensor, "B 2H S D/2"]:
        return halves(k)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "B 2H T S"]:
        """Return the scores of the first maps of all heads, then of the second maps."""
        q = halves(q * k.shape[-1] ** -0.5)  # k is split already: its width is D / 2
        return dot_scores(q, k)

    def answer(self, call: AttentionCall) -> Out:
        """Compute as `Scored.answer`, with prior and bias of a head for both of its maps."""
        prior, bias = (for_both_maps(x, self.shape.heads) for x in (call.prior, call.bias))
        return super().answer(call._replace(prior=prior, bias=bias))

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        """Compute both maps in chunks, otherwise in one fused kernel with halves padded to the width of the values."""
        if in_chunks(q, k, v):
            factor, scale = self.factor().to(v.dtype), 1 - self.lambda_init
            maps = DifferenceOfSoftmaxes(scale, factor.detach())
            return self.chunked(maps, k.shape[-1] ** -0.5, q.chunk(2, -1), k.chunk(2, 1), v, mask, parameter=factor)
        if few_scores(q, k, PLAIN_UP_TO):
            return None
        width = k.shape[-1]
        q, k = (F.pad(x, (0, width)) for x in (halves(q), k))  # kernels need q, k and v of one width
        y = fused_dot(q, k, v.repeat(1, 2, 1, 1), mask, width**-0.5)
        return None if y is None else self.difference(y)

    def key_length(self) -> float:
        """Return sqrt(D / 2), which cancels the scale of half a head."""
        return math.sqrt(self.shape.head_width / 2)

    def normalize(self, scores: Tensor, mask: Mask, raw_scores: Tensor) -> Float[Tensor, "b H T S"]:
        return self.difference(visible_softmax(scores, self.allowed(mask)))

    def difference(self, maps: Float[Tensor, "b 2H T n"]) -> Float[Tensor, "b H T n"]:
        """Return (1 - l0) (first - l second)."""
        first, second = maps.chunk(2, 1)
        difference: Tensor = (1 - self.lambda_init) * (first - self.factor().to(maps.dtype) * second)
        return difference

    def factor(self) -> Float[Tensor, ""]:
        """Return l."""
        plus, minus = self.vectors.prod(1).sum(-1).exp()  # e^(a1 b1), e^(a2 b2)
        factor: Tensor = plus - minus + self.lambda_init
        return factor

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=2, max_length=2)).double()
        nn.init.zeros_(mechanism.vectors)
        q, k = one_head((1, 1)), one_head((0, math.log(3)), (math.log(3), 0))
        mask = Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1)
        return mechanism.weights(q, k, k, mask), one_head((0.08, 0.56))
