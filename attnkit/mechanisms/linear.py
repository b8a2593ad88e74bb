"""Linear attention: y = phi(q) (sum phi(k)^T v) / (phi(q) sum phi(k)^T).

Linear time in both directions, in chunks if causal, with a state of constant size in decoding. Unscaled, as in the
sources. `feature_map` is phi:

- `elu`: elu(x) + 1, which is 1 + x or e^x.
- `taylor`: similarity 1 + cos(q, k), features (1, x / |x|). It lies in [0, 2], so it cannot focus.
- `exp`: e^x of queries and keys.
- `softmax`: softmax(q) over the features and e^k, the causal counterpart of `efficient`. The sum in the softmax
  cancels in the quotient, so for equal q and k the output is that of `exp`.

`features: M` maps q and k to M channels by two learned matrices per head, without which M is D; `exp` was proposed
with M = 4 D. Their initialization keeps the variance of a channel.

Exponents are stable at any size: each channel of the keys is shifted by its maximum exponent (if causal, by its
maximum so far), and the exponents of a query, with these shifts added, by their maximum.

Limits: no score matrix, so no position biases and no options of scored mechanisms. The rank of the map is at most M;
with M = 1 the cosines of `taylor` are 1 or -1, and queries whose keys all point the opposite way are ill-conditioned.
Time T*M*E per head, memory T*(D + E).

Source: Katharopoulos et al. 2020, "Transformers are RNNs", equation 7, for `elu`; Shen et al. 2021, "Efficient
Attention", for the idea of `softmax`; the other two from Su's notes on linear attention (spaces.ac.cn, archives 7546
and 8338).

Worked number: q = k = v = rows (1, 0), (0, 1), (1, 1) give with `elu` the similarities (5, 4, 6), (4, 5, 6), (6, 6,
8); the first output is (.7333, .6667), and with a causal mask the second is (.4444, .5556).
"""

from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import Kernel, Mask, Shape, at_least, one_head
from attnkit.ops.kernel_sums import Features
from attnkit.ops.linear_attention import FeatureMaps


class _EluPlusOne(torch.autograd.Function):
    """elu(x) + 1 as e^min(x, 0) + max(x, 0), which does not add 1 to a number near -1.

    The derivative is min(y, 1), so the backward pass needs the output alone.
    """

    generate_vmap_rule = True  # for per-sample gradients by torch.func

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        y: Tensor = x.clamp_max(0).exp_().add_(x.clamp_min(0))
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        y: Tensor
        (y,) = ctx.saved_tensors
        return gradient * y.clamp_max(1)  # y = e^x below 0, and above 1 beyond it


class LinearAttention(Kernel):
    """Kernel attention with a selectable feature map; cost T*M*E, M = D without `features`."""

    facts_with = {"feature_map": {"exp": {"onnx": ("encoder", "cross")}, "softmax": {"onnx": ("encoder", "cross")}}}

    def __init__(
        self,
        shape: Shape,
        *,
        feature_map: Literal["elu", "taylor", "exp", "softmax"] = "elu",
        features: int | None = None,
    ) -> None:
        super().__init__(shape)
        self.feature_map = feature_map
        self.exponent = feature_map in ("exp", "softmax")
        self.wide_q = self.wide_k = None
        if features is not None:
            at_least("linear", "features", features)
            self.chunk = 32 if features <= 64 else 64
            size = (shape.heads, shape.head_width, features)
            self.wide_q = nn.Parameter(torch.randn(size) * shape.head_width**-0.5)
            self.wide_k = nn.Parameter(torch.randn(size) * shape.head_width**-0.5)

    def maps(self) -> FeatureMaps:
        by_hand = self.feature_map == "elu" and self.wide_q is None
        return super().maps()._replace(by_hand=partial(Features, None) if by_hand else None)

    def phi_q(self, q: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T M"]:
        """Return the features of the queries up to a factor per query, or their logarithms as in `phi_k`."""
        q = q if self.wide_q is None else q @ self.wide_q.to(q.dtype)
        if self.feature_map == "elu":
            return _elu_plus_one(q)
        if self.feature_map == "taylor":
            # cosines are rounded: without this excess, a query with only antipodal keys would give 0/0
            return _with_one(q, 1 + 8 * torch.finfo(q.dtype).eps)
        return q

    def phi_k(self, k: Tensor, valid: Tensor) -> Float[Tensor, "B H S M"]:
        """Return the features of the keys, or their logarithms for `exp` and `softmax`."""
        k = k if self.wide_k is None else k @ self.wide_k.to(k.dtype)
        if self.feature_map == "elu":
            return _elu_plus_one(k)
        return _with_one(k, 1.0) if self.feature_map == "taylor" else k

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=2, max_length=3))
        x = one_head((1, 0), (0, 1), (1, 1))
        masks = (Mask.packed(3, x.device, causal=causal) for causal in (False, True))
        got = torch.cat([mechanism(x, x, x, mask).y for mask in masks], 2)
        both = ((11 / 15, 10 / 15), (10 / 15, 11 / 15), (0.7, 0.7))
        return got, one_head(*both, (1, 0), (4 / 9, 5 / 9), (0.7, 0.7))


def _elu_plus_one(x: Tensor) -> Tensor:
    if torch.compiler.is_compiling():  # which fuses this by itself
        return torch.where(x > 0, x + 1, x.exp())
    y: Tensor = _EluPlusOne.apply(x)  # type: ignore[no-untyped-call]
    return y


def _with_one(x: Tensor, one: float) -> Tensor:
    """Return (one, x / |x|); a zero vector has similarity 1 with every vector."""
    return F.pad(F.normalize(x, dim=-1), (1, 0), value=one)
