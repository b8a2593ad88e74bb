"""Positions: rotated into queries and keys, added to scores, or added to embeddings."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnkit.attention.mask import Mask
from attnkit.errors import UsageError


class Rotary(nn.Module):
    """Rotary positions: pairs of channels turn by position x frequency (Su et al. 2021, eq. 34).

    Raises UsageError for heads of an odd width.
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

        With `parts` the pairs of each of so many slices of x; the last channel of slices of an odd
        width stays as it is.
        """
        if parts > 1:
            slices, width = x.chunk(parts, -1), x.shape[-1] // parts
            even = width - width % 2
            turned = (torch.cat((self(s[..., :even], positions), s[..., even:]), -1) for s in slices)
            return torch.cat([*turned], -1)
        return self.turned(x, *self.turns(x, positions))

    def turns(
        self, x: Float[Tensor, "*n D"], positions: Int[Tensor, "b T"]
    ) -> tuple[Float[Tensor, "b 1 T C"], Float[Tensor, "b 1 T C"]]:
        """Cosines and sines for the C pairs of heads like x."""
        # float64, and no buffer that a cast to 16 bits would round: late positions need the digits
        half = torch.arange(0, x.shape[-1], 2, dtype=torch.float64, device=x.device)
        angles = positions[:, None, :, None] * self.base ** (-half / x.shape[-1])
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    @staticmethod
    def turned(
        x: Float[Tensor, "*n H T D"], cos: Float[Tensor, "b 1 T C"], sin: Float[Tensor, "b 1 T C"]
    ) -> Float[Tensor, "*n H T D"]:
        """Each pair of x rotated by its angle."""
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Alibi(nn.Module):
    """Bias on scores that falls with distance, by a slope a head (Press et al. 2022, section 3).

    Slopes are 2^(-8 i / H).  Both directions fall alike when the future is not hidden.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, mask: Mask, dtype: torch.dtype) -> Float[Tensor, "b H T S"]:
        """-slope x |query position - key position|, in float32 at least.

        The sum with scores of 16 bits is then float32 too: 8 bits would merge far positions.
        """
        dtype = torch.promote_types(dtype, torch.float32)
        steps = torch.arange(1, self.heads + 1, device=mask.q_pos.device, dtype=dtype)
        slopes = 2.0 ** (-8.0 * steps / self.heads)
        distance = (mask.q_pos[:, None, :, None] - mask.k_pos[:, None, None, :]).abs()
        return -slopes[:, None, None] * distance.to(dtype)


class Relative(nn.Module):
    """Learned bias on scores by bucket of distance, one table a stack (T5: Raffel et al. 2020).

    The nearest half of the buckets hold one distance each; the others grow in width up to
    `longest`, behind which all distances share the last.
    """

    def __init__(self, heads: int, causal: bool, buckets: int = 32, longest: int = 128) -> None:
        super().__init__()
        self.causal, self.buckets, self.longest = causal, buckets, longest
        self.table = nn.Embedding(buckets, heads)
        nn.init.normal_(self.table.weight, std=0.1)

    def bucket(self, ahead: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """The bucket of key position - query position; one side each where both can be seen."""
        count = self.buckets if self.causal else self.buckets // 2
        side = torch.zeros_like(ahead) if self.causal else (ahead > 0).long() * count
        distance = (-ahead).clamp_min(0) if self.causal else ahead.abs()
        near = count // 2  # distances below it have a bucket each
        # float64: the edges of buckets are the same on every device
        growth = (distance.clamp_min(1).double() / near).log() / math.log(self.longest / near)
        far = (near + growth * (count - near)).long().clamp_max(count - 1)
        return side + torch.where(distance < near, distance, far)

    def forward(self, mask: Mask, dtype: torch.dtype) -> Float[Tensor, "b H T S"]:
        """The table's entry for each pair of positions."""
        ahead = mask.k_pos[:, None, :] - mask.q_pos[:, :, None]  # [b, T, S]
        bias: Tensor = self.table(self.bucket(ahead))  # [b, T, S, H]
        return bias.permute(0, 3, 1, 2).to(dtype)  # [b, H, T, S]


def sinusoids(positions: Int[Tensor, "b T"], width: int) -> Float[Tensor, "b T W"]:
    """Fixed position vectors (Vaswani et al. 2017, section 3.5): sines first, then cosines."""
    half = (width + 1) // 2  # one too many where the width is odd: cut off below
    scale = torch.exp(torch.arange(half, device=positions.device) * (-math.log(10000.0) / half))
    angles = positions[..., None] * scale  # [b, T, W/2]
    return torch.cat((angles.sin(), angles.cos()), -1)[..., :width]
