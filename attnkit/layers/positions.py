"""Positions: rotated into queries and keys, added to scores, or added to embeddings."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnkit.attention.mask import Mask
from attnkit.errors import UsageError


class Rotary(nn.Module):
    """Rotary positions: pairs of channels rotate by position x frequency (Su et al. 2021, equation 34).

    Raises UsageError if the head width is odd.
    """

    def __init__(self, head_width: int, base: float = 10000.0) -> None:
        super().__init__()
        if head_width % 2:
            raise UsageError(f"rotary positions need heads of an even width, got {head_width}")
        self.head_width, self.base = head_width, base

    def forward(
        self, x: Float[Tensor, "B H T D"], positions: Int[Tensor, "b T"], parts: int = 1
    ) -> Float[Tensor, "B H T D"]:
        """Rotate each pair (x[i], x[i + D/2]).

        With `parts` each of that many slices of x is rotated separately; the last channel of a slice of odd width
        stays as it is.
        """
        if parts > 1:
            slices, width = x.chunk(parts, -1), x.shape[-1] // parts
            even = width - width % 2
            rotated = (torch.cat((self(s[..., :even], positions), s[..., even:]), -1) for s in slices)
            return torch.cat([*rotated], -1)
        return self.rotate(x, *self.cos_sin(x, positions))

    def cos_sin(
        self, x: Float[Tensor, "*n D"], positions: Int[Tensor, "b T"]
    ) -> tuple[Float[Tensor, "b 1 T C"], Float[Tensor, "b 1 T C"]]:
        """Return the cosines and sines for the C = D / 2 pairs of channels of x, in its dtype."""
        # float64, and no buffer, which a cast to 16 bits would round: large positions need the digits
        half = torch.arange(0, x.shape[-1], 2, dtype=torch.float64, device=x.device)
        angles = positions[:, None, :, None] * self.base ** (-half / x.shape[-1])
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    @staticmethod
    def rotate(
        x: Float[Tensor, "*n H T D"], cos: Float[Tensor, "b 1 T C"], sin: Float[Tensor, "b 1 T C"]
    ) -> Float[Tensor, "*n H T D"]:
        """Rotate each pair of x by its angle."""
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Alibi(nn.Module):
    """Score bias that falls linearly with distance, with one slope per head (Press et al. 2022, section 3).

    Slopes are 2^(-8 i / H). The bias is symmetric if the future is not hidden.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, mask: Mask, dtype: torch.dtype) -> Float[Tensor, "b H T S"]:
        """Return -slope x |query position - key position|, in at least float32.

        The sum with 16-bit scores is then float32 too: the 8-bit significand of bfloat16 would merge far positions.
        """
        dtype = torch.promote_types(dtype, torch.float32)
        steps = torch.arange(1, self.heads + 1, device=mask.q_pos.device, dtype=dtype)
        slopes = 2.0 ** (-8.0 * steps / self.heads)
        distance = (mask.q_pos[:, None, :, None] - mask.k_pos[:, None, None, :]).abs()
        return -slopes[:, None, None] * distance.to(dtype)


class Relative(nn.Module):
    """Learned score bias per bucket of distances, one table per stack (T5: Raffel et al. 2020).

    The nearer half of the buckets hold one distance each; the others grow in width up to `max_distance`, beyond which
    all distances share the last bucket.
    """

    def __init__(self, heads: int, causal: bool, buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__()
        self.causal, self.buckets, self.max_distance = causal, buckets, max_distance
        self.table = nn.Embedding(buckets, heads)
        nn.init.normal_(self.table.weight, std=0.1)

    def bucket(self, ahead: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Return the bucket of key position - query position; each side has half of the buckets unless causal."""
        count = self.buckets if self.causal else self.buckets // 2
        side = torch.zeros_like(ahead) if self.causal else (ahead > 0).long() * count
        distance = (-ahead).clamp_min(0) if self.causal else ahead.abs()
        near = count // 2  # smaller distances have a bucket each
        # float64, so that bucket edges are the same on every device
        growth = (distance.clamp_min(1).double() / near).log() / math.log(self.max_distance / near)
        far = (near + growth * (count - near)).long().clamp_max(count - 1)
        return side + torch.where(distance < near, distance, far)

    def forward(self, mask: Mask, dtype: torch.dtype) -> Float[Tensor, "b H T S"]:
        """Return the table entry of each pair of positions."""
        ahead = mask.k_pos[:, None, :] - mask.q_pos[:, :, None]  # [b, T, S]
        bias: Tensor = self.table(self.bucket(ahead))  # [b, T, S, H]
        return bias.permute(0, 3, 1, 2).to(dtype)  # [b, H, T, S]


def sinusoids(positions: Int[Tensor, "b T"], width: int) -> Float[Tensor, "b T W"]:
    """Return fixed position vectors (Vaswani et al. 2017, section 3.5): sines first, then cosines."""
    half = (width + 1) // 2  # one too many if the width is odd: cut off below
    scale = torch.exp(torch.arange(half, device=positions.device) * (-math.log(10000.0) / half))
    angles = positions[..., None] * scale  # [b, T, W/2]
    return torch.cat((angles.sin(), angles.cos()), -1)[..., :width]
