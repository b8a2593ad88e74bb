"""Local attention: A = softmax(q k^T / sqrt(D)) over |i - j| <= window.

Each query attends to `window` neighbors on each side, or only to those before it if causal or with `side: behind`;
distances are between real tokens. Long sequences are computed in blocks of queries against overlapping windows of
keys, a decoding step from the last window + 1 keys. Source: Su 2019, "Born to be saving" (spaces.ac.cn/archives/6853),
whose window is 2 k + 1; as in the local part of Child et al. 2019, "Generating Long Sequences with Sparse
Transformers".

Worked number: D = 4, window 1, scores 0, 0, ln 3 for the last of three tokens: the first is hidden, so the weights are
0, 1/4, 3/4.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from attnkit.attention import AttentionCall, Mask, Out, Shape, at_least, one_head
from attnkit.attention.sparse_pattern import Pattern


class Local(Pattern):
    """softmax(q k^T / sqrt(D)) v over the keys at most `window` away; cost T*window*D."""

    cost = "T*window*D"
    quadratic = False

    def __init__(self, shape: Shape, *, window: int = 32, side: Literal["both", "behind"] = "both") -> None:
        super().__init__(shape, at_least("local", "window", window, 0), None)
        self.behind = side == "behind"

    def answer(self, call: AttentionCall) -> Out:
        """Compute as `Scored.answer`; `side: behind` makes the mask causal."""
        return super().answer(call._replace(mask=call.mask._replace(causal=call.mask.causal or self.behind)))

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=4, max_length=3), window=1)
        q = one_head((0, 0, 0, 0), (0, 0, 0, 0), (2, 0, 0, 0))
        k = one_head((0, 0, 0, 0), (0, 0, 0, 0), (math.log(3), 0, 0, 0))
        mask = Mask.packed(3, torch.device("cpu"), causal=False)
        return mechanism.weights(q, k, k, mask)[:, :, 2:], one_head((0, 0.25, 0.75))
