"""Dense Synthesizer: A = softmax(B), B = relu(q) W2 + b2: each token writes its own row of scores.

There are no keys: row i depends on token i only. With `layers: 2` (the source) q = x W1 + b1 and B = relu(q) W2 + b2;
with `layers: 1` B = q W, which is affine in x, not linear, as q = x W1 + b1 keeps its bias. Its scores then have a
rank of at most D, the head width (with two layers at most D + 1), whatever the number of positions N. W, W1, W2, b1
and b2 belong to a head. With `reads: layer` x is the whole input of the layer, so `layer.q` is the first layer (the
released code); with `reads: slice` a head reads its own D columns of it. N is `data.max_length` + 1 (twice that in a
model of shape decoder); longer sequences are refused. Parameters per head beyond the values: D W + D N for a model
width W, or D^2 + D N for slices. At width 512, 6 + 6 layers, 8 heads and N = 256, where plain attention has 67M, that
makes 65M or 62M, and the source reports 62M: it reads slices. Source: Tay et al. 2021, "Synthesizer: Rethinking
Self-Attention in Transformer Models", "Dense Synthesizer"; one matrix: Su 2020 (spaces.ac.cn/archives/7430).

Worked number: D = 2, q = (1, -1), W2 = rows (0, ln 3), (5, 5), b2 = 0 give the scores (0, ln 3), because relu drops
-1, and the weights 1/4, 3/4; `layers: 1` gives the scores (-5, ln 3 - 5) and the same weights.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import Mask, Shape, one_head
from attnkit.attention.position_tables import (
    PositionScored,
    check_length,
    columns_at,
    first_layer,
    per_head,
    position_count,
    xavier,
)


class SynthesizerDense(PositionScored):
    """softmax(relu(q) W2 + b2) v; cost T*S*D, no keys."""

    uses = "qv"
    facts_with = {"reads": {"slice": {"uses": "xv"}}}

    def __init__(self, shape: Shape, *, layers: Literal[1, 2] = 2, reads: Literal["layer", "slice"] = "layer") -> None:
        super().__init__(shape)
        self.first = first_layer(reads, shape.heads, shape.head_width)
        self.layers = layers
        size = (shape.heads, shape.head_width, shape.max_length)
        self.weight = nn.Parameter(xavier(*size))
        self.bias = nn.Parameter(torch.zeros(size[0], size[2])) if layers == 2 else None

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "B H T S"]:
        """Return the columns of relu(q) W2 + b2, or of q W, at the positions of the keys."""
        q = self.first(q)
        limit = self.weight.shape[2]
        check_length(mask, limit, "synthesizer-dense")
        x = F.relu(q) if self.layers == 2 else q
        wide = position_count(mask, limit)
        bias = None if self.bias is None else self.bias[:, :wide]
        return columns_at(per_head(x, self.weight[..., :wide], bias), mask)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        maps = []
        for layers in (2, 1):
            mechanism = cls(Shape(heads=1, head_width=2, max_length=2), layers=layers).double()
            with torch.no_grad():
                mechanism.weight.copy_(one_head((0, math.log(3)), (5, 5))[0])
            q, mask = one_head((1, -1), (0, 0)), Mask.packed(2, torch.device("cpu"), causal=False)
            maps.append(mechanism.weights(q, None, q, mask)[:, :, :1])
        return torch.cat(maps, 2), one_head((0.25, 0.75), (0.25, 0.75))
