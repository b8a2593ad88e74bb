"""Fourier mixing: y_i = sum_j cos(2 pi i j / n) v_j, the real part of the DFT over the n tokens.

Nothing is learned: every token is mixed with all others by fixed waves. Only the real tokens of a row are transformed,
whatever its padding, so n is the length of the row. The sum is not scaled, as the norms of the block rescale it. The
source's second DFT, over the width, is not included, as the mixing is linear in each channel of the values; the
layer's projections take its place.

Encoder only, because every output depends on all tokens. Time T*log(T)*E per head; rows of unequal length are
transformed one length at a time. Source: Lee-Thorp et al. 2022, "FNet: Mixing Tokens with Fourier Transforms",
equations 1 and 3.

Worked number: four tokens: the second output is v_1 - v_3, so its row of the map is 1, 0, -1, 0.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnkit.attention import Mask, Out, Shape, Unscored, one_head
from attnkit.attention.mask import readable, unpadded, with_pads_last
from attnkit.ops.linear_attention import widest


class Fourier(Unscored):
    """Discrete Fourier transform over tokens; cost T*log(T)*E, nothing learned."""

    uses = "v"
    causal = False
    cross = False
    positions = ()
    normalized = False
    cost = "T*log(T)*D"
    whole_sequences = True
    why = "its waves span one whole sequence"

    def attend(self, q: Any, k: Any, v: Tensor, mask: Mask, *_: object) -> Out:
        x, valid = v.to(widest(v.dtype)), mask.valid.expand(v.shape[0], -1)
        if x.numel() == 0:
            return Out(v, None)
        if unpadded(mask):
            y = torch.fft.fft(x, dim=2).real
        elif not readable(valid):  # the lengths cannot be read: the dense form
            y = cosines(mask).to(x.dtype) @ x
        else:
            y = with_pads_last(lambda _, tokens: transform(tokens, valid), mask, x)
        return Out(y.to(v.dtype), None)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism, x = cls(Shape(1, 1, 4)), one_head((0,), (0,), (0,), (0,))
        maps = mechanism.weights(None, None, x, Mask.packed(4, x.device, causal=False))
        return maps[:, :, 1:2], one_head((1, 0, -1, 0))


def transform(x: Float[Tensor, "B H T E"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "B H T E"]:
    """Return the transform of the tokens of each right-padded row, with zeros for padding."""
    lengths, y = valid.sum(1), torch.zeros_like(x)
    for length in {*lengths.tolist()} - {0}:  # one FFT per length
        rows = (lengths == length).nonzero()[:, 0]
        y[rows, :, :length] = torch.fft.fft(x[rows, :, :length], dim=2).real
    return y


def cosines(mask: Mask) -> Float[Tensor, "b 1 T S"]:
    """Return the matrix of cosines, with 0 for padding."""
    count = mask.valid.sum(1).clamp_min(1)[:, None, None, None]
    # modulo n in integers: the cosine of a large float would lose digits
    turns = (mask.q_pos[:, None, :, None] * mask.k_pos[:, None, None, :]) % count
    return (turns * (2 * math.pi / count.double())).cos() * mask.valid[:, None, None, :]
