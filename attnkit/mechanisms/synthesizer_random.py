"""Random Synthesizer: A = softmax(R), R an N x N table per head, indexed by position.

There are no queries and no keys: the map is the same for every sequence. R is trained, or with `trainable: false`
stays as drawn (the source's Fixed Random: a saved buffer, not a parameter). Both are initialized alike, from Gaussians
with the standard deviation `scale`. At 0.02 the rows start almost uniform, so a fixed table averages; at 1 it weights
positions at random. N is `data.max_length` + 1 (twice that in a model of shape decoder); longer sequences are refused.
Parameters per head beyond the values: N^2, or none. Source: Tay et al. 2021, "Synthesizer: Rethinking Self-Attention
in Transformer Models", "Random Synthesizer"; its scale is not published.

Worked number: a row of R that begins (0, ln 3) gives the second query of a causal decoder the weights 1/4, 3/4.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnkit.attention import Mask, Shape, above, one_head
from attnkit.attention.position_tables import PositionScored, check_length, entries

LEAST = 1e-3
"""Minimum weight of a pair of positions in `adopt_maps`, in multiples of the uniform weight."""


class SynthesizerRandom(PositionScored):
    """softmax(R[query position, key position]) v; cost T*S*E, no queries, no keys."""

    uses = "v"
    cost = "T*S*D"
    why = "its weights are a table over the positions of one sequence"
    adopts_maps = True
    query_blocks = False

    def __init__(self, shape: Shape, *, trainable: bool = True, scale: float = 0.02) -> None:
        super().__init__(shape)
        table = torch.randn(shape.heads, shape.max_length, shape.max_length)
        table = table * above("synthesizer-random", "scale", scale)
        if trainable:
            self.table = nn.Parameter(table)
        else:
            self.register_buffer("table", table)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "b H T S"]:
        """Return rows and columns of R by position, so that caches and left padding are exact."""
        check_length(mask, self.table.shape[1], "synthesizer-random")
        return entries(self.table, mask)

    def adopt_maps(self, maps: Float[Tensor, "H N N"]) -> None:
        """Set R to the logarithm of the maps, so that its softmax returns them."""
        with torch.no_grad():
            self.table.copy_(maps.clamp_min(LEAST).log())

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=2, max_length=3)).double()
        with torch.no_grad():
            mechanism.table[:, 1, :2] = torch.tensor((0, math.log(3)))
        mask = Mask.packed(3, mechanism.table.device, causal=True)
        maps = mechanism.weights(None, None, torch.zeros(1, 1, 3, 2).double(), mask)
        return maps[:, :, 1:2], one_head((0.25, 0.75, 0))
