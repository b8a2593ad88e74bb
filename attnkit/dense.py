"""A linear layer whose products are fast on every maker's processors.

Torch's product of float32 matrices on a CPU is MKL's, which keeps to narrow vectors where the
processor is not its maker's own.  oneDNN, which torch carries too, takes the widest there are.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

LEAST_WORK = 2**21
"""With fewer multiplications, what a call costs counts for more than its arithmetic."""

ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch._C._has_mkldnn else None
"""The operator that compiled models call; None where this torch has none."""


class Linear(nn.Linear):
    """torch's Linear, with oneDNN's product where no gradient is wanted.

    The same weights, names and initialisation; float32 throughout, so answers differ by rounding.
    """

    def forward(self, x: Float[Tensor, "*n I"]) -> Float[Tensor, "*n O"]:
        """x W^T + b."""
        if ONEDNN is None or not self._suits(x):
            return F.linear(x, self.weight, self.bias)
        y: Tensor = ONEDNN(x, self.weight, self.bias, "none", [], "")
        return y

    def _suits(self, x: Tensor) -> bool:
        """Whether the operator takes these arguments and gains by them."""
        return (
            not torch.is_grad_enabled()
            and x.dtype == self.weight.dtype == torch.float32
            and x.device.type == self.weight.device.type == "cpu"
            and x.numel() * self.out_features >= LEAST_WORK
            and bool(torch.backends.mkldnn.enabled)
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )
