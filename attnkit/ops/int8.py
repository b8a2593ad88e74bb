"""Matrix products in 8-bit integers, for decoding on CPUs with instructions for them.

Each row of the input and of the weight is scaled to whole numbers from -127 to 127.  Their
products and sums are exact, so what a row answers does not depend on the rows beside it.  The plain
form is the product of the rounded matrices in floating point.  Beside float32, decoding with a beam
of 5 is 1.3 times as fast with AVX-512 VNNI alone, but 0.95 times with AMX, whose float32 is faster
(benchmarks/results/earlier/decoding.md).
"""

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from attnkit.ops.fast_cpu import operator

PRODUCT = "aten._int_mm.default"  # int8 x int8 -> int32
INSTRUCTIONS = ("avx512_vnni", "avx_vnni", "amx_int8")
LARGEST = 127


def available() -> bool:
    """Whether this version of torch and this processor have such products."""
    able = torch.cpu.get_capabilities()
    return operator(PRODUCT) is not None and any(able.get(name) for name in INSTRUCTIONS)


def rounded(x: Float[Tensor, "R I"]) -> tuple[Int8[Tensor, "R I"], Float[Tensor, "R 1"]]:
    """Whole numbers, and what each row is multiplied by to be x again up to rounding."""
    scale = x.abs().amax(1, keepdim=True) / LARGEST
    # a row of zeros has any scale; one that holds NaN has NaN, so that its answers are NaN too
    return (x / scale.clamp_min(torch.finfo(x.dtype).tiny)).round_().to(torch.int8), scale


def int8_product(
    x: Float[Tensor, "*n I"], weight: Int8[Tensor, "O I"], scale: Float[Tensor, " O"], bias: Float[Tensor, " O"] | None
) -> Float[Tensor, "*n O"]:
    """x W^T + b with the weights that `rounded` gives."""
    whole, size = rounded(x.reshape(-1, x.shape[-1]))
    y = operator(PRODUCT)(whole, weight.t()).to(x.dtype).mul_(size)
    y = y.mul_(scale) if bias is None else torch.addcmul(bias, y, scale, out=y)
    return y.view(*x.shape[:-1], -1)
