"""Self-attention over a pattern of distances, the base class of `local`, `atrous` and `sparse`.

Distances are between the positions of tokens, so padding never counts. The plain path is dense attention with a
narrowed mask; long sequences are computed in blocks by `ops.block_sparse`, and a decoding step reads only the keys
that it needs.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask, Scored, Shape, dot_scores, visible_softmax
from attnkit.attention.mask import gather_columns, readable, unpadded, with_pads_last
from attnkit.ops import block_sparse as blocks
from attnkit.ops import sliding_window
from attnkit.ops.fast_cpu import few_scores, fuses_short

PLAIN_UP_TO = 256 * 256
"""Approximate number of scores per head up to which dense attention is faster than blocks on a CPU. torch's fused
kernel takes the mask of the pattern and is faster than plain products in 32 bits."""


class Pattern(Scored):
    """softmax(q k^T / sqrt(D)) over distances up to `window` and multiples of `rate` (None: the window alone)."""

    cross = False
    why = "its pattern covers distances within one sequence"
    homogeneous = True
    by_distance = True

    def __init__(self, shape: Shape, window: int, rate: int | None) -> None:
        super().__init__(shape)
        self.window, self.rate = window, rate

    def sees(self, distance: Int[Tensor, "*n"]) -> Bool[Tensor, "*n"]:
        """Return whether a key at this distance (at least 0) is in the pattern."""
        near = distance <= self.window
        return near if self.rate is None else near | (distance % self.rate == 0)

    def key_length(self) -> float:
        """Return sqrt(D), which cancels the scale."""
        return math.sqrt(self.shape.head_width)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "B H T S"]:
        return dot_scores(q * q.shape[-1] ** -0.5, k)

    def allowed(self, mask: Mask) -> Bool[Tensor, "b 1 T S"]:
        """Return the visible keys at a distance in the pattern."""
        q_pos, k_pos = mask.q_pos.int(), mask.k_pos.int()  # half the memory of int64 for [b, 1, T, S]
        distance = (q_pos[:, None, :, None] - k_pos[:, None, None, :]).abs_()
        return mask.dense() & self.sees(distance)

    def keys_seen_later(self, length: int) -> int:
        """Return the window; multiples of `rate` are all read by some later query."""
        return min(length, self.window) if self.rate is None else length

    def keys_seen(self, mask: Mask) -> Int[Tensor, "b 1 T"]:
        """Count allowed keys from the positions, which run from 0 without gaps."""
        seen = self._count_distances(mask.q_pos)
        if not mask.causal:
            last = mask.valid.sum(1, keepdim=True) - 1
            seen = seen + self._count_distances((last - mask.q_pos).clamp_min(0)) - 1  # itself once
        return seen.unsqueeze(1)

    def _count_distances(self, position: Int[Tensor, "b T"]) -> Int[Tensor, "b T"]:
        """Return the number of distances in the pattern from 0 to `position`."""
        near = position.clamp_max(self.window) + 1
        if self.rate is None:
            return near
        return near + (position // self.rate - self.window // self.rate).clamp_min(0)

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        """Compute a long sequence in blocks, and a decoding step from a few keys."""
        queries, keys = q.shape[2], k.shape[2]
        if v.shape[3] != q.shape[3]:
            return None  # for `weights`: the values are the identity
        if mask.causal and queries == 1 < keys:
            return self._step(q, k, v, mask)
        if queries * keys <= PLAIN_UP_TO or queries <= sliding_window.MIN_QUERIES < keys:
            if q.device.type != "cpu" or not fuses_short(q) or few_scores(q, k):
                return None
            return F.scaled_dot_product_attention(q, k, v, self.allowed(mask))
        last = mask.k_pos[:, -queries:]
        in_place = mask.layout != "any" or (readable(last) and torch.equal(mask.q_pos, last))
        if queries < keys and not in_place:
            return None
        if queries == keys:
            return self._long(q, k, v, mask)
        earlier = keys - queries  # cached keys have no queries: zeros take their place
        return self._long(F.pad(q, (0, 0, earlier, 0)), k, v, mask)[:, :, earlier:]

    def _long(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Float[Tensor, "B H T D"]:
        """Compute whole sequences, with padding moved to the end of each row and back."""
        padded, causal = not unpadded(mask), mask.causal

        def answer(valid: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            # causal queries cannot attend to padding, which is behind them
            real = valid if padded and not causal else None
            if self.rate is None:
                return blocks.near(q, k, v, real, self.window, causal)
            attend = blocks.joint if self.window else blocks.strided
            return attend(q, k, v, real, self.rate, causal)

        y = with_pads_last(answer, mask, q, k, v)
        return y.masked_fill(~mask.valid.any(1)[:, None, None, None], 0) if padded else y

    def _step(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Float[Tensor, "B H 1 D"]:
        """Compute the last query of each row from the keys at its distances alone."""
        length, allowed = k.shape[2], None
        distances = torch.arange(min(self.window + 1, length), device=q.device)
        if self.rate is not None:
            first = self.rate * (self.window // self.rate + 1)  # smaller multiples are in `distances`
            far = torch.arange(first, max(first, length), self.rate, device=q.device)
            distances = torch.cat((distances, far))
        if mask.layout == "any":
            position = mask.q_pos - distances  # [b, n]
            count = mask.valid.cumsum(1)  # tokens up to each column [b, S]
            column = torch.searchsorted(count, position.clamp_min(0) + 1)  # of the token at that position
            column = column.clamp_max(length - 1)  # a row of padding has no tokens
            allowed = (position >= 0) & mask.valid.gather(1, column)
            k, v = gather_columns(k, column), gather_columns(v, column)
        elif self.rate is None:
            k, v = (x[:, :, -len(distances) :] for x in (k, v))
        else:
            column = length - 1 - distances
            k, v = k.index_select(2, column), v.index_select(2, column)
        scores = self.scores(q, k, mask)
        allowed = None if allowed is None else allowed[:, None, None, :]
        return visible_softmax(scores, allowed).to(v.dtype) @ v
