"""A linear layer whose products are fast on every maker's processors.

Torch's product of float32 matrices on a CPU is MKL's, which keeps to narrow vectors where the
processor is not its maker's own.  oneDNN, which torch carries too, takes the widest there are.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

LEAST_WORK, LEAST_TRAINING_WORK = 2**21, 2**24
"""With fewer multiplications, what a call costs counts for more than its arithmetic."""

ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch._C._has_mkldnn else None
"""The operator that compiled models call; None where this torch has none."""
SLOPES = getattr(torch.ops.aten, "mkldnn_linear_backward_weights", None)
"""The operator for the gradients of weight and bias; None where this torch has none."""


class Linear(nn.Linear):
    """torch's Linear by `product`: the same weights, names and initialisation."""

    def forward(self, x: Float[Tensor, "*n I"]) -> Float[Tensor, "*n O"]:
        """x W^T + b."""
        return product(x, self.weight, self.bias)


def product(
    x: Float[Tensor, "*n I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*n O"]:
    """x W^T + b, by oneDNN where it gains; float32 throughout, so answers differ by rounding."""
    trained = torch.is_grad_enabled() and any(
        part is not None and part.requires_grad for part in (x, weight, bias)
    )
    if ONEDNN is None or (trained and SLOPES is None) or not _suits(x, weight, trained):
        return F.linear(x, weight, bias)
    y: Tensor = (
        _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        if trained
        else ONEDNN(x, weight, bias, "none", [], "")
    )
    return y


def _suits(x: Tensor, weight: Tensor, trained: bool) -> bool:
    """Whether the operators take these arguments and gain by them."""
    least = LEAST_TRAINING_WORK if trained else LEAST_WORK
    return (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and x.numel() * weight.shape[0] >= least
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class _Product(torch.autograd.Function):
    """oneDNN's product with its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        assert ONEDNN is not None
        y: Tensor = ONEDNN(x, weight, bias, "none", [], "")
        return y

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        (dy,), (to_x, to_weight, to_bias) = slopes, ctx.needs_input_grad
        rows, flat = (part.reshape(-1, part.shape[-1]) for part in (x, dy))
        if torch.is_grad_enabled():  # a second derivative needs what torch can differentiate
            return (
                dy @ weight if to_x else None,
                flat.t() @ rows if to_weight else None,
                flat.sum(0) if to_bias else None,
            )
        assert ONEDNN is not None
        assert SLOPES is not None
        dx = ONEDNN(dy, weight.t(), None, "none", [], "") if to_x else None
        if not to_weight:
            return dx, None, flat.sum(0) if to_bias else None
        dw, db = SLOPES(flat.to_mkldnn(), rows.to_mkldnn(), weight.to_mkldnn(), to_bias)
        return dx, dw.to_dense(), db.to_dense() if to_bias else None
