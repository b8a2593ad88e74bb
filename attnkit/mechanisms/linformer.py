"""Linformer: Y = softmax(Q (E^T K)^T / sqrt(D)) F^T V.

E and F, [N, rank] for each head, project the positions of keys and values to `rank` slots; N is `data.max_length` + 1.
As in the source's equation 7 each head of each layer has its own (nothing is shared), and keys and values have
different ones. Token p takes row p and padding adds nothing to any slot, so padding changes nothing. The softmax runs
over all `rank` slots at any length, so no slot is hidden, rows of the map (softmax times F^T) do not sum to 1, and a
short sequence uses few rows of E and F. Both are initialized from Gaussians of variance 1 / N, which keeps the
variance of a key in a full sequence.

Limits: bidirectional self-attention only, sequences of at most N tokens. Time T*rank*D per head, memory T*rank.

Source: Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity", equation 7; 128 is what they find enough
for 512 tokens.

Worked number: D = 1, rank 2, keys (ln 3, 0), queries 1, E the identity and F = ((1, 2), (0, 4)): the slots have the
weights 3/4 and 1/4, so the tokens have 3/4 + 2/4 = 5/4 and 4/4 = 1.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import Mask, Out, Shape, Unscored, at_least, one_head
from attnkit.attention.mask import gather_columns, pads_last, unpadded
from attnkit.attention.position_tables import check_length, per_head

PLAIN_UP_TO = 256
"""Approximate number of queries up to which plain products are faster than the fused kernel on a CPU."""


class Linformer(Unscored):
    """Attention to `rank` mixtures of keys; cost T*rank*D."""

    causal = False
    cross = False
    limit: int | str | None = "max_length"
    cost = "T*rank*D"
    normalized = False
    whole_sequences = True
    why = "its projections mix the keys of one whole sequence, later tokens included"

    def __init__(self, shape: Shape, *, rank: int = 128) -> None:
        super().__init__(shape)
        self.limit = shape.max_length
        size = (shape.heads, shape.max_length, at_least("linformer", "rank", rank))
        self.project_k = nn.Parameter(torch.randn(size) * shape.max_length**-0.5)
        self.project_v = nn.Parameter(torch.randn(size) * shape.max_length**-0.5)

    def attend(self, q: Tensor, k: Any, v: Any, mask: Mask, *_: object) -> Out:
        check_length(mask, self.project_k.shape[1], "linformer")
        if not unpadded(mask):
            hidden = ~mask.valid[:, None, :, None]
            k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)
            order = pads_last(mask)
            if order is not None:
                k, v = gather_columns(k, order), gather_columns(v, order)
        reach = min(k.shape[2], self.project_k.shape[1])  # only padding lies beyond
        k, v = k[:, :, :reach], v[:, :, :reach]
        project_k, project_v = self.project_k[:, :reach], self.project_v[:, :reach]
        scaled = q * q.shape[-1] ** -0.5
        rank, width = self.project_k.shape[2], q.shape[3] + v.shape[3]
        if q.shape[2] * reach * (width + 2 * rank) < (q.shape[2] + reach) * rank * width:
            # Q (E^T K)^T as (Q K^T) E: less work for few tokens and many slots
            pairs = scaled @ k.transpose(-1, -2)  # [B, H, T, S]
            weights = per_head(pairs, project_k, None).softmax(-1)  # [B, H, T, R]
            return Out(per_head(weights, project_v.transpose(1, 2), None) @ v, None)
        keys, values = _slots(k, project_k), _slots(v, project_v)  # [B, H, R, D or E]
        if q.shape[3] == values.shape[3] and q.shape[2] > PLAIN_UP_TO:
            return Out(F.scaled_dot_product_attention(q, keys, values), None)
        return Out((scaled @ keys.transpose(-1, -2)).softmax(-1) @ values, None)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=2), rank=2).double()
        with torch.no_grad():
            mechanism.project_k.copy_(torch.eye(2))
            mechanism.project_v.copy_(torch.tensor(((1, 2), (0, 4))))
        q, k = one_head((1,), (1,)), one_head((math.log(3),), (0,))
        mask = Mask.packed(2, q.device, causal=False)
        return mechanism.weights(q, k, k, mask)[:, :, :1], one_head((1.25, 1))


def _slots(x: Float[Tensor, "B H S D"], projection: Float[Tensor, "H S R"]) -> Float[Tensor, "B H R D"]:
    """Return mixtures of keys or values, with the rows of the batch side by side, so that no projection is copied."""
    y = torch.bmm(projection.transpose(1, 2), x.permute(1, 2, 0, 3).flatten(2))
    return torch.unflatten(y, 2, (x.shape[0], -1)).permute(2, 0, 1, 3)  # from [H, R, B D]
