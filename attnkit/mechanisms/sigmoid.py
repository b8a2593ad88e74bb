"""Sigmoid attention: A = sigmoid(q k^T / sqrt(D) + b), each key weighed by itself.

Rows do not sum to 1: a query may attend to nothing, or to every key at once.  `bias: log-n` is b =
-log n, with n the keys that the query may see, so that scores of 0 weigh each key 1 / (1 + n), near
the average that a softmax begins with; `learned` is one number a head, at first -log of the longest
sequence of the model; a number is that number.  The norm that the source puts behind the layer when
it is deep is not part of it.  Source: Ramapuram et al. 2024, "Theory, Analysis, and Best Practices
for Sigmoid Self-Attention", equation 3 and section 3 (b = -log n).

Worked number: D = 4, q = (2, 0, 0, 0), keys (0, 0, 0, 0) and (ln 3, 0, 0, 0) score 0 and ln 3; n =
2, so the weights are sigmoid(-ln 2) = 1/3 and sigmoid(ln 3 - ln 2) = 3/5.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnkit.attention import Mask, Scored, Shape, one_head
from attnkit.errors import UsageError
from attnkit.mechanisms.scaled_dot import ScaledDot


class Sigmoid(ScaledDot):
    """sigmoid(q k^T / sqrt(D) + b) v; cost T*S*D.  For `key_heads` see `dot`."""

    normalised = False
    fused = Scored.fused

    def __init__(
        self, shape: Shape, *, bias: float | Literal["log-n", "learned"] = "log-n", key_heads: int | None = None
    ) -> None:
        super().__init__(shape, key_heads=key_heads)
        if not isinstance(bias, str) and not math.isfinite(bias):
            raise UsageError(f"sigmoid: bias must be finite, got {bias}")
        self.bias: nn.Parameter | float | None = None if isinstance(bias, str) else float(bias)
        if bias == "learned":
            self.bias = nn.Parameter(torch.full((shape.heads,), -math.log(shape.max_length)))

    def normalise(self, scores: Tensor, mask: Mask, raw_scores: Tensor) -> Float[Tensor, "b H T S"]:
        """sigmoid(scores + b), and 0 for keys that may not be seen."""
        allowed = self.allowed(mask)
        if isinstance(self.bias, Tensor):
            scores = scores + self.bias.to(scores.dtype)[:, None, None]
        elif self.bias is not None:
            scores = scores + self.bias
        else:
            seen = mask.visible() if allowed is None else allowed.sum(-1)
            scores = scores - seen.clamp_min(1).to(scores.dtype).log().unsqueeze(-1)  # not log 0
        weights = scores.sigmoid()
        return weights if allowed is None else weights.masked_fill(~allowed, 0)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=4, max_length=2))
        q, k = one_head((2, 0, 0, 0)), one_head((0, 0, 0, 0), (math.log(3), 0, 0, 0))
        mask = Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1)
        return mechanism.weights(q, k, k, mask), one_head((1 / 3, 3 / 5))
