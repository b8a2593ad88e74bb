"""Dynamic convolution: A_i,i+o = softmax over offsets o of (q_i W)_o, a kernel for each token.

There are no keys: in every head each token predicts the weights of the `window` tokens around it. Decoders see the
token and the window - 1 tokens before it, encoders floor(window / 2) before it and the rest after it. Positions
outside the sequence are excluded from the softmax; padding never counts. q = x W_q + b is the layer's projection and
each head has its own W [D, window], so kernels have a rank of at most D + 1. With `shared: true` it is the lightweight
convolution: one learned kernel per head, whatever the tokens, and no queries. The gated unit before the convolution
and the dropout of kernels in the source's layer are not included.

Kernels are laid out as bands of small matrices, so time and memory are linear in the length; decoding keeps the values
of the last window - 1 tokens. Self-attention only; there are no scores of pairs, so no position biases. Source: Wu et
al. 2019, "Pay Less Attention with Lightweight and Dynamic Convolutions", equations 4 and 5.

Worked number: D = 2, window 2, q = (1, 0), W = rows (0, ln 3), (0, 0): the previous token has the weight 1/4 and the
token itself 3/4; the first token attends to itself only, with weight 1.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import Mask, Out, Shape, State, Unscored, at_least, one_head, real_keys, visible_softmax
from attnkit.attention.mask import gather_columns
from attnkit.attention.position_tables import per_head, xavier

BLOCK = 64
"""Number of queries whose kernels form one matrix."""


class DynamicConv(Unscored):
    """Kernel over neighboring values that each token predicts; cost T*window*D, no keys."""

    uses = "qv"
    facts_with = {"shared": {"True": {"uses": "v"}}}
    cross = False
    positions = ()
    map = "exact"
    cost = "T*window*D"
    state = "constant"
    by_distance = True
    why = "its kernel covers distances within one sequence"

    def __init__(self, shape: Shape, *, window: int = 15, shared: bool = False) -> None:
        super().__init__(shape)
        self.window = at_least("dynamic-conv", "window", window)
        inner = 1 if shared else shape.head_width
        kernel = xavier(shape.heads, inner, window)
        self.kernel = nn.Parameter(kernel.squeeze(1) if shared else kernel)

    def attend(self, q: Any, k: Any, v: Tensor, mask: Mask, state: State, _: object) -> Out:
        """Compute the convolution. The state is the last window - 1 values [B, H, window - 1, E]."""
        before = self.window - 1 if mask.causal else self.window // 2
        length = v.shape[2]
        kernel = self.kernel.to(v.dtype)
        if q is None:
            logits = kernel[None, :, None].expand(-1, -1, length, -1)
        else:
            logits = per_head(q, kernel, None)  # [B, H, T, window]
        if torch.compiler.is_exporting():  # blocks depend on the length
            return Out(plain(logits, mask, before) @ v, state)
        earlier = mask.valid[:, : mask.valid.shape[1] - length].sum(1, keepdim=True)
        columns = torch.arange(before, device=v.device)
        cached = columns >= before - earlier  # [b, before]: cached tokens are right-aligned
        if state is None:
            state = v.new_zeros((*v.shape[:2], before, v.shape[3]))
        real = real_keys(mask, v)
        order = None
        if real is not None:
            # padding moves before the new tokens, so that tokens are adjacent whatever the padding was
            order = real.int().argsort(dim=1, stable=True)
            cached = cached.expand(real.shape[0], -1)
            is_token = torch.cat((cached, real), 1)
            ordered = is_token.int().argsort(dim=1, stable=True)
            values = gather_columns(torch.cat((state, v), 2), ordered)
            seen = is_token.gather(1, ordered)
            logits = gather_columns(logits.expand(v.shape[0], -1, -1, -1), order)
        else:
            values = torch.cat((state, v), 2)
            seen = torch.cat((cached, cached.new_ones((cached.shape[0], length))), 1)
        y = self._convolve(logits, values, seen, before)
        y = y if order is None else gather_columns(y, order.argsort(1))
        return Out(y, values[:, :, values.shape[2] - before :])  # not -before, which may be 0

    def _convolve(
        self,
        logits: Float[Tensor, "b H T window"],
        values: Float[Tensor, "B H n E"],
        seen: Bool[Tensor, "b n"],
        before: int,
    ) -> Float[Tensor, "B H T E"]:
        """Return the kernels times the values; the first `before` values precede the first query."""
        window, length = self.window, logits.shape[2]
        step = min(max(BLOCK, window), length)
        padding = -length % step
        after = window - 1 - before
        seen = F.pad(seen, (0, after))
        weights = visible_softmax(logits, seen.unfold(1, window, 1)[:, None])  # [b, H, T, window]
        values = F.pad(values, (0, 0, 0, after + padding))
        weights = torch.unflatten(F.pad(weights, (0, 0, 0, padding)), 2, (-1, step))
        # rows of `wide` entries, read as rows of wide - 1, shift by one column from row to row: a band
        wide = step + window
        band = F.pad(weights, (0, step)).flatten(-2)[..., : step * (wide - 1)]
        band = torch.unflatten(band, -1, (step, wide - 1))  # [b, H, blocks, step, wide - 1]
        pieces = values.unfold(2, wide - 1, step).transpose(-1, -2)  # [B, H, blocks, wide - 1, E]
        return (band.to(values.dtype) @ pieces).flatten(2, 3)[:, :, :length]

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=2, max_length=2), window=2).double()
        with torch.no_grad():
            mechanism.kernel.copy_(one_head((0, math.log(3)), (0, 0))[0])
        q, mask = one_head((1, 0), (1, 0)), Mask.packed(2, torch.device("cpu"), causal=True)
        return mechanism.weights(q, None, q, mask), one_head((1, 0), (0.25, 0.75))


def plain(logits: Float[Tensor, "b H T window"], mask: Mask, before: int) -> Float[Tensor, "b H T S"]:
    """Return the map as a matrix, with each key found by its position."""
    offset = mask.k_pos[:, None, None, :] - mask.q_pos[:, None, :, None] + before
    window = logits.shape[-1]
    inside = mask.dense() & (offset >= 0) & (offset < window)
    rows = max(logits.shape[0], offset.shape[0])
    at = offset.clamp(0, window - 1).expand(rows, logits.shape[1], -1, -1)
    return visible_softmax(logits.expand(rows, -1, -1, -1).gather(-1, at), inside)
