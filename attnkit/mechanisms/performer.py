"""Performer (FAVOR+): y = phi(q) (sum phi(k)^T v) / (phi(q) sum phi(k)^T), phi random.

phi(x) = exp(w x - |x|^2 / 2) for M random directions w, x = q or k times D^(-1/4). The mean of phi(q) phi(k) over w is
e^(q k / sqrt(D)), so this approximates scaled-dot in linear time, with a state of constant size in decoding. `kernel`:

- `softmax`: as above.
- `hyperbolic`: also exp(-w x - |x|^2 / 2), so 2 M features; less variance.
- `relu`: relu(w x) + 0.001, or relu(x) + 0.001 without `features`. Approximates nothing.

Directions are orthogonal in blocks of D (QR of a Gaussian block, with unbiased signs) and have the lengths of
independent Gaussian vectors; they are a saved buffer. `features` is M, by default int(D ln D). `redraw_every: n` draws
new directions at every n-th training call (0: never). Draws depend on a saved seed and a saved count, so a resumed
training gets the same directions. They are fixed in evaluation.

Stable without an added epsilon: the logarithms of each feature of the keys, |k|^2 / 2 included, are shifted by their
maximum (if causal, the maximum so far, so that the future does not leak), and those of a query, with these shifts
added, by their maximum.

Limits: no score matrix, so no position biases; weights trained with scaled-dot need fine-tuning. Time T*M*(D + E) per
head, memory T*(D + E) + M*E.

Source: Choromanski et al. 2021, "Rethinking Attention with Performers", lemma 1, theorem 2 and section 2.4; defaults
of `features` and `redraw_every` as in performer-pytorch.

Worked number: D = 1, directions 0 and ln 2, q = 1, keys 0 and 1: phi(q) is (1, 2) up to a factor, phi(k) is (1, 1) and
e^(-1/2) (1, 2), so the weights are as 3 to 5 e^(-1/2): .497294, .502706.
"""

import math
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Kernel, Mask, Out, Shape, at_least, one_head
from attnkit.errors import UsageError
from attnkit.ops import linear_attention
from attnkit.ops.kernel_sums import Features
from attnkit.ops.onednn import product

RELU_FLOOR = 1e-3
"""Added to the features of the relu kernel, so that no query has weight 0 for all keys."""


class Performer(Kernel):
    """Random positive orthogonal features; cost T*M*(D + E)."""

    cost = "T*M*D"
    onnx = ("encoder", "cross")
    projection: Tensor | None
    seed: Tensor
    calls: Tensor

    def __init__(
        self,
        shape: Shape,
        *,
        features: int | None = None,
        kernel: Literal["softmax", "hyperbolic", "relu"] = "softmax",
        redraw_every: int = 1000,
    ) -> None:
        super().__init__(shape)
        if features is not None:
            at_least("performer", "features", features)
        self.kernel = kernel
        if redraw_every < 0:
            raise UsageError(f"performer: redraw_every must be at least 0 (0 never redraws), got {redraw_every}")
        self.redraw_every = redraw_every
        self.exponent = kernel != "relu"
        width = shape.head_width
        self.register_buffer("projection", None)
        if features is None and kernel != "relu":
            features = max(1, int(width * math.log(width)))
        if features is None:
            return
        self.chunk = 32 if features <= 64 else 64
        # on the CPU even if the model is built on the meta device, so that every build draws the same
        seed = int(torch.randint(2**31, (), device="cpu"))
        self.register_buffer("seed", torch.tensor(seed))
        self.register_buffer("calls", torch.tensor(0))
        drawn = directions(features, width, seed)
        self.register_buffer("projection", torch.empty(features, width).copy_(drawn))
        self._counted = (-1, 0, 0)  # version of `calls`, count, seed: avoids reading from the device

    def attend(self, *inputs: Any) -> Out:
        """Count a training call, and compute kernel attention."""
        if self.training and self.redraw_every and self.projection is not None:
            self._count(self.projection)
        return super().attend(*inputs)

    def maps(self) -> linear_attention.FeatureMaps:
        """Return the feature maps, with a copy of directions that another call could replace."""
        projection = self.projection
        if projection is not None and self.training and self.redraw_every:
            projection = projection.clone()  # `directions` are drawn in place
        q, k = partial(self._project, projection=projection), partial(self._map_k, projection)
        by_hand = partial(self._features, projection) if projection is not None and self.exponent else None
        return linear_attention.FeatureMaps(q, lambda x, _: k(x), self.exponent, by_hand)

    def phi_q(self, q: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T M"]:
        """Return the features of the queries up to a factor per query, or their logarithms as in `phi_k`."""
        return self._project(q, self.projection)  # |q|^2 / 2 is one of the factors that cancel

    def phi_k(self, k: Tensor, valid: Tensor) -> Float[Tensor, "B H S M"]:
        """Return the logarithms of the features of the keys, or for the relu kernel the features."""
        return self._map_k(self.projection, k)

    def _features(self, projection: Tensor) -> Features:
        scale: float = self.shape.head_width**-0.25
        along = projection * scale
        return Features(torch.cat((along, -along)) if self.kernel == "hyperbolic" else along)

    def _map_k(self, projection: Tensor | None, k: Tensor) -> Tensor:
        projected = self._project(k, projection)
        if self.kernel == "relu":
            return projected
        half_norm: Tensor = k.square().sum(-1, keepdim=True) * (0.5 * k.shape[-1] ** -0.5)
        return projected - half_norm

    def _project(self, x: Tensor, projection: Tensor | None) -> Tensor:
        """Return w x for each direction (and -w x if hyperbolic), or for the relu kernel the features."""
        scale: float = x.shape[-1] ** -0.25  # for q and for k: together 1 / sqrt(D)
        projected = x * scale if projection is None else product(x, projection.to(x.dtype) * scale)
        if self.kernel == "relu":
            return F.relu(projected) + RELU_FLOOR
        if self.kernel == "hyperbolic":
            projected = torch.cat((projected, -projected), -1)
        return projected

    def _count(self, projection: Tensor) -> None:
        """Count a training call in the saved buffer, and redraw the directions if it is time."""
        version, count, seed = self._counted
        if version != self.calls._version:  # loaded, moved or new: read them from the device
            count, seed = int(self.calls), int(self.seed)
        count += 1
        self.calls.fill_(count)
        self._counted = (self.calls._version, count, seed)
        if count % self.redraw_every == 0:
            draw_seed = seed + count // self.redraw_every  # both are saved: a resumed run draws the same
            projection.copy_(directions(projection.shape[0], projection.shape[1], draw_seed))

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=2), features=2).double()
        mechanism.projection = torch.tensor([[0.0], [math.log(2)]], dtype=torch.float64)
        q, k = one_head((1,)), one_head((0,), (1,))
        maps = mechanism.weights(q, k, k, Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1))
        first = 3 / (3 + 5 * math.exp(-0.5))
        return maps, one_head((first, 1 - first))


def directions(features: int, width: int, seed: int) -> Float[Tensor, "M D"]:
    """Return M directions of D channels, orthogonal in blocks of D, with lengths of Gaussian vectors."""
    generator = torch.Generator("cpu").manual_seed(seed)
    normal = partial(torch.randn, generator=generator, device="cpu")
    blocks = []
    for _ in range(-(-features // width)):
        orthogonal, upper = torch.linalg.qr(normal(width, width))
        # QR alone determines signs by the input (such as a first coordinate that is never positive), which biases the
        # kernel: for D = 2 and q = k = (.5, 0) its mean was .82, not 1.28
        blocks.append(orthogonal * torch.where(upper.diagonal() < 0, -1.0, 1.0))
    lengths: Tensor = normal(features, width).norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:features] * lengths
