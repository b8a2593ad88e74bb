"""Factorized Random Synthesizer: A = softmax(R1 R2^T), R1 and R2 tables N x k per head.

A Random Synthesizer whose table has a rank of at most k. `rank` is k, 8 in the source; `scale` is the standard
deviation of the table at initialization, as in synthesizer-random. N is `data.max_length` + 1 (twice that in a model
of shape decoder); longer sequences are refused. Parameters per head beyond the values: 2 N k. Source: Tay et al. 2021,
"Synthesizer: Rethinking Self-Attention in Transformer Models", "Factorized Random".

Worked number: k = 1, R1 = (1, 2), R2 = (0, ln 3) give the second row of scores (0, 2 ln 3), so the weights 1/10, 9/10.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnkit.attention import Mask, Shape, above, at_least, one_head
from attnkit.attention.position_tables import PositionScored, aligned, check_length, rows_at


class SynthesizerFactorizedRandom(PositionScored):
    """softmax(R1[query position] R2[key position]) v; cost T*S*k, no queries, no keys."""

    uses = "v"
    cost = "T*S*D"
    why = "its weights are a table over the positions of one sequence"

    def __init__(self, shape: Shape, *, rank: int = 8, scale: float = 0.02) -> None:
        super().__init__(shape)
        word = "synthesizer-factorized-random"
        size = (shape.heads, shape.max_length, at_least(word, "rank", rank))
        # so that the sum of k products has this scale
        std = (above(word, "scale", scale) / rank**0.5) ** 0.5
        self.rows = nn.Parameter(torch.randn(size) * std)
        self.columns = nn.Parameter(torch.randn(size) * std)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "b H T S"]:
        check_length(mask, self.rows.shape[1], "synthesizer-factorized-random")
        keys, queries = mask.k_pos.shape[1], mask.q_pos.shape[1]
        if aligned(mask, self.rows.shape[1]):
            rows = self.rows[:, mask.start : mask.start + queries]
            return (rows @ self.columns[:, :keys].transpose(1, 2))[None]
        left, right = rows_at(self.rows, mask.q_pos), rows_at(self.columns, mask.k_pos)
        return (left @ right.transpose(-1, -2)).transpose(0, 1)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=2, max_length=2), rank=1).double()
        with torch.no_grad():
            mechanism.rows.copy_(one_head((1,), (2,))[0])
            mechanism.columns.copy_(one_head((0,), (math.log(3),))[0])
        v, mask = one_head((0, 0), (0, 0)), Mask.packed(2, torch.device("cpu"), causal=False)
        return mechanism.weights(None, None, v, mask)[:, :, 1:], one_head((0.1, 0.9))
