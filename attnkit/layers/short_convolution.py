"""A short causal convolution over the tokens of a row."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F


class ShortConvolution(nn.Module):
    """SiLU of a causal depthwise convolution: each channel reads its last `size` tokens.

    Padding is skipped, so the tokens around it are neighbors. Source: Poli et al. 2023, "Hyena Hierarchy", section
    3.1; followed by SiLU as in Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence
    Length", section 3.4.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        bound = size**-0.5
        self.weight = nn.Parameter(torch.empty(channels, size).uniform_(-bound, bound))

    def forward(
        self, x: Float[Tensor, "B T C"], real: Bool[Tensor, "b T"] | None, before: Float[Tensor, "B n C"] | None
    ) -> tuple[Float[Tensor, "B T C"], Float[Tensor, "B n C"]]:
        """Return the convolved tokens and the last size - 1 tokens, the next `before`; `real` is False for padding."""
        size, length = self.weight.shape[1], x.shape[1]
        if before is None:
            before = x.new_zeros((x.shape[0], size - 1, x.shape[2]))
        row, order = torch.cat((before, x), 1), None  # [B, size - 1 + T, C]
        if real is not None:
            # padding moves before all tokens, including those of earlier calls
            real = real.expand(x.shape[0], -1)
            tokens = F.pad(real, (size - 1, 0), value=True)  # [B, size - 1 + T]
            row = _columns(row, tokens.int().argsort(dim=1, stable=True))
            order = real.int().argsort(dim=1, stable=True)  # stable: tokens keep their order
        y = row[:, :length] * self.weight[:, 0]
        for i in range(1, size):
            y = torch.addcmul(y, row[:, i : i + length], self.weight[:, i])
        y = F.silu(y)
        return y if order is None else _columns(y, order.argsort(1)), row[:, length:]


def _columns(x: Float[Tensor, "B n C"], order: Tensor) -> Float[Tensor, "B n C"]:
    return x.gather(1, order[:, :, None].expand(-1, -1, x.shape[2]))
