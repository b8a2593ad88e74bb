"""Parallax: A_ij = p_ij (1 + r_i kbar_i - r_i k_j), p = softmax(q k^T / sqrt(D)), kbar = sum p k.

Softmax attention is a local average of values; this is a local linear fit, whose slope each token predicts as a second
query r instead of solving for it. The weight of a key is reduced by how far it lies beyond the mean key along r. Rows
sum to 1, and entries may be negative; with r = 0 it is scaled-dot. r is one more projection of each head, and r k^T is
not scaled, as in the source. `residual_scores`, `entropy_scale` and position biases act on p alone; `qk_norm` and
rotary positions act on r as on q.

Encoder, decoder and cross attention. Time T*S*D per head. Source: Zuo et al. 2026, "Parallax: Parameterized Local
Linear Attention", algorithm 1.

Worked number: D = 1, q = 0, r = 1, keys 0 and 1: p is (1/2, 1/2) and kbar 1/2, so the weights are 1/2 (1 + 1/2 - 0) =
3/4 and 1/2 (1 + 1/2 - 1) = 1/4.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.attention import Mask, Shape, dot_scores, one_head, visible_softmax
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.ops.linear_attention import widest
from attnkit.ops.score_chunks import ScoreChunk, Weighing, in_chunks


class Corrected(Weighing):
    """p (1 + sum p a - a), p = softmax(s), of scores s and a = r k^T, chunk by chunk."""

    tensors = 4

    def weigh(self, scores: Sequence[Tensor], chunk: ScoreChunk) -> tuple[Tensor, ...]:
        p, along = scores[0].softmax(-1), scores[1]
        both = p * along
        mean = both.sum(-1, keepdim=True)
        return torch.addcmul(p, p, mean).sub_(both), p, along, mean

    def score_gradients(self, kept: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
        """Return the gradients of s and a, with G the gradient of the weights.

        For s it is p (g - sum p g) with g = G (1 + sum p a - a) + a sum p G, for a it is p (sum p G - G).
        """
        _, p, along, mean = kept
        share = grad.mul_(p)
        total = share.sum(-1, keepdim=True)
        to_scores = torch.addcmul(share, share, mean).addcmul_(along, share, value=-1)
        to_scores.addcmul_(p * along, total)
        to_scores.addcmul_(p, to_scores.sum(-1, keepdim=True), value=-1)
        return [to_scores, (p * total).sub_(share)]


class Parallax(ScaledDot):
    """Local linear fit of the values; cost T*S*D. For `key_heads` see `dot`."""

    homogeneous = False
    corrected = True
    softmax = False
    fuses_bias = True

    def __init__(self, shape: Shape, *, key_heads: int | None = None) -> None:
        super().__init__(shape, key_heads=key_heads)
        self.query_sets = 2

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "B 2H T S"]:
        """Return q k^T / sqrt(D), followed by r k^T."""
        q, r = q.chunk(2, 1)
        return torch.cat((dot_scores(q * self.scale, k), dot_scores(r, k)), 1)

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor | None:
        """Compute in chunks of both maps."""
        if not in_chunks(q, k, v):
            return None
        q, r = q.chunk(2, 1)
        return self.chunked(Corrected(), 1.0, (q * self.scale, r), (k, k), v, mask, bias)

    def normalize(self, scores: Tensor, mask: Mask, raw_scores: Tensor) -> Float[Tensor, "b H T S"]:
        wide = widest(scores.dtype)
        p = visible_softmax(scores.to(wide), self.allowed(mask))
        along = raw_scores.chunk(2, 1)[1].to(wide)  # r k^T [B, H, T, S]
        return p * (1 + (p * along).sum(-1, keepdim=True) - along)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=2))
        q, k = torch.cat((one_head((0,)), one_head((1,))), 1), one_head((0,), (1,))
        mask = Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1)
        return mechanism.weights(q, k, k, mask), one_head((0.75, 0.25))
