"""Sigmoid attention: A = sigmoid(q k^T / sqrt(D) + b), each key weighed by itself.

Rows do not sum to 1: a query may attend to nothing, or fully to every key. `bias: log-n` is b = -log n, with n the
number of visible keys, so that scores of 0 give each key the weight 1 / (1 + n), near the average that a softmax
begins with; `learned` is one number per head, initially -log of the maximum length of the model; a number is b itself.
The norm that the source puts behind the layer in deep models is not included. Source: Ramapuram et al. 2024, "Theory,
Analysis, and Best Practices for Sigmoid Self-Attention", equation 3 and section 3 (b = -log n).

Worked number: D = 4, q = (2, 0, 0, 0), keys (0, 0, 0, 0) and (ln 3, 0, 0, 0) score 0 and ln 3; n = 2, so the weights
are sigmoid(-ln 2) = 1/3 and sigmoid(ln 3 - ln 2) = 3/5.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import Mask, Shape, one_head
from attnkit.errors import UsageError
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.ops.score_chunks import ScoreChunk, Weighing, in_chunks

COUNTED = 256
"""Number of queries of a long sequence whose keys are counted at once, which takes 8 bytes per pair."""


class Sigmoids(Weighing):
    """sigmoid(scores), chunk by chunk."""

    handles_empty = True

    def weigh(self, scores: Sequence[Tensor], chunk: ScoreChunk) -> tuple[Tensor]:
        return (scores[0].sigmoid_(),)

    def score_gradients(self, kept: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
        return [torch.ops.aten.sigmoid_backward(grad, kept[0])]


class Sigmoid(ScaledDot):
    """sigmoid(q k^T / sqrt(D) + b) v; cost T*S*D. For `key_heads` see `dot`."""

    normalized = False
    fuses_bias = True

    def __init__(
        self, shape: Shape, *, bias: float | Literal["log-n", "learned"] = "log-n", key_heads: int | None = None
    ) -> None:
        super().__init__(shape, key_heads=key_heads)
        if not isinstance(bias, str) and not math.isfinite(bias):
            raise UsageError(f"sigmoid: bias must be finite, got {bias}")
        self.bias: nn.Parameter | float | None = None if isinstance(bias, str) else float(bias)
        if bias == "learned":
            self.bias = nn.Parameter(torch.full((shape.heads,), -math.log(shape.max_length)))

    def log_n(self, mask: Mask, dtype: torch.dtype) -> Float[Tensor, "b 1 T 1"]:
        """Return -log n of each query."""
        return -self.keys_seen(mask).clamp_min(1).to(dtype).log().unsqueeze(-1)  # avoids log 0

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor | None:
        """Compute in chunks; a learned bias is one more channel of the queries, with 1 in the keys."""
        if not in_chunks(q, k, v):
            return None
        offset = None
        if isinstance(self.bias, Tensor):
            bias_channel = (self.bias.to(q.dtype) / self.scale)[:, None, None].expand(*q.shape[:3], 1)
            q, k = torch.cat((q, bias_channel), -1), F.pad(k, (0, 1), value=1.0)
        elif self.bias is None:
            length, keys = mask.q_pos.shape[1], mask.k_pos.shape[1]
            parts = [mask.part(first, min(first + COUNTED, length), keys) for first in range(0, length, COUNTED)]
            offset = torch.cat([self.log_n(part, q.dtype) for part in parts], 2)
        else:
            offset = q.new_full((1, 1, q.shape[2], 1), self.bias)
        return self.chunked(Sigmoids(), self.scale, (q,), (k,), v, mask, bias, offset=offset)

    def normalize(self, scores: Tensor, mask: Mask, raw_scores: Tensor) -> Float[Tensor, "b H T S"]:
        allowed = self.allowed(mask)
        if isinstance(self.bias, Tensor):
            scores = scores + self.bias.to(scores.dtype)[:, None, None]
        elif self.bias is not None:
            scores = scores + self.bias
        else:
            scores = scores + self.log_n(mask, scores.dtype)
        weights = scores.sigmoid()
        return weights if allowed is None else weights.masked_fill(~allowed, 0)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=4, max_length=2))
        q, k = one_head((2, 0, 0, 0)), one_head((0, 0, 0, 0), (math.log(3), 0, 0, 0))
        mask = Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1)
        return mechanism.weights(q, k, k, mask), one_head((1 / 3, 3 / 5))
