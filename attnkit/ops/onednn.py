"""A linear layer whose products are fast on every vendor's processors.

torch multiplies float32 matrices on a CPU by MKL, which uses narrow vectors on processors that are not Intel's.
oneDNN, which is part of torch too, uses the widest vectors available. The plain implementation is
`torch.nn.functional.linear`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.ops.fast_cpu import PRODUCT, WEIGHT_GRADIENTS, operator, usable

MIN_WORK, MIN_TRAINING_WORK = 2**21, 2**24
"""Minimum number of multiplications for oneDNN, without and with gradients: below, call overhead dominates."""
WIDER = torch.backends.cpu.get_cpu_capability() == "AVX512"
"""Whether the processor has AVX-512; MKL uses at most AVX2 on processors that are not Intel's."""


class Linear(nn.Linear):
    """`torch.nn.Linear` computed by `product`: same weights, names and initialization."""

    def forward(self, x: Float[Tensor, "*n I"]) -> Float[Tensor, "*n O"]:
        return product(x, self.weight, self.bias)

    def lower(self, dtype: torch.dtype) -> None:
        """Convert the weights to `dtype`; they can no longer be trained."""
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias.detach().to(dtype), requires_grad=False)
        # a new parameter, so that an embedding tied to the old one keeps its precision
        self.weight = nn.Parameter(self.weight.detach().to(dtype), requires_grad=False)


def product(
    x: Float[Tensor, "*n I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*n O"]:
    """Return x W^T + b, by oneDNN if that is faster; results then differ by float32 rounding.

    Weights of another dtype than x have a lower precision, in which the product is computed.
    """
    if x.dtype != weight.dtype and not torch.is_grad_enabled():
        return quick_product(x, weight, bias)
    trained = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (x, weight, bias))
    needed = (PRODUCT, WEIGHT_GRADIENTS) if trained else (PRODUCT,)
    small = x.numel() * weight.shape[0] < (MIN_TRAINING_WORK if trained else MIN_WORK)
    if small or not (trained or WIDER) or not usable(x, weight, operators=needed, onednn=True):
        return F.linear(x, weight, bias)
    if not trained:
        return onednn_product(x, weight, bias)
    y: Tensor = _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return y


def onednn_product(
    x: Float[Tensor, "*n I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*n O"]:
    """Return x W^T + b by oneDNN's operator, which must exist; without gradients."""
    y: Tensor = operator(PRODUCT)(x, weight, bias, "none", [], "")  # no fused activation
    return y


def quick_product(
    x: Float[Tensor, "*n I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*n O"]:
    """Return `product` without gradients, for callers that have checked `usable` once for many calls."""
    if weight.dtype != x.dtype:
        # torch's own 16-bit product without a bias is slow on a CPU
        multiply = onednn_product if x.device.type == "cpu" else F.linear
        return multiply(x.to(weight.dtype), weight, bias).to(x.dtype)
    if not WIDER or weight.dtype != torch.float32 or x.numel() * weight.shape[0] < MIN_WORK:
        return F.linear(x, weight, bias)
    return onednn_product(x, weight, bias)


class _Product(torch.autograd.Function):
    """oneDNN's product with its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        (grad,), (needs_x, needs_weight, needs_bias) = grads, ctx.needs_input_grad
        rows, flat = (t.reshape(-1, t.shape[-1]) for t in (x, grad))  # [n, I], [n, O]
        if torch.is_grad_enabled():  # second derivatives need operators that torch can differentiate
            return (
                grad @ weight if needs_x else None,
                flat.t() @ rows if needs_weight else None,
                flat.sum(0) if needs_bias else None,
            )
        x_grad = onednn_product(grad, weight.t()) if needs_x else None
        if not needs_weight:
            return x_grad, None, flat.sum(0) if needs_bias else None
        to_mkldnn = (t.to_mkldnn() for t in (flat, rows, weight))  # the operator requires this layout
        weight_grad, bias_grad = operator(WEIGHT_GRADIENTS)(*to_mkldnn, needs_bias)
        return x_grad, weight_grad.to_dense(), bias_grad.to_dense() if needs_bias else None
