"""Efficient attention: y = softmax_features(q) (softmax_positions(k)^T v).

A double softmax: each query is a distribution over the D channels, and each channel of the keys is a distribution over
the real positions. So rows of the map sum to 1 without a denominator. Linear time; bidirectional, for self-attention
and cross attention, which keeps only its [D, E] context.

Limits: not causal, because the softmax of a channel runs over the whole sequence; no score matrix, so no position
biases. Unscaled. Time T*D*E per head, memory T*(D + E).

Source: Shen et al. 2021, "Efficient Attention: Attention with Linear Complexities", equation 3.

Worked number: q = k = v = rows (1, 0), (0, 2), (1, 1) give the first query the weights (.332953, .292490, .374557).
"""

from typing import Any

from torch import Tensor

from attnkit.attention import Mask, Out, Shape, State, Unscored, one_head, real_keys
from attnkit.ops.linear_attention import FeatureMaps, key_sums, merge, quotient

KEYS = FeatureMaps(lambda q: q, lambda k, _: k, exponent=True)


class Efficient(Unscored):
    """Two softmaxes, neither over scores; cost T*D*E."""

    causal = False
    cost = "T*D*D"
    state = "constant"
    why = "its keys are normalized over the whole sequence; the causal alternative is linear with feature_map: softmax"

    def attend(self, q: Tensor, k: Any, v: Any, mask: Mask, state: State, *_: object) -> Out:
        """Compute both softmaxes. The state is sums of e^k [v, 1] and the peak of each channel."""
        if k is not None and v is not None:
            state = merge(state, key_sums(KEYS, k, v, real_keys(mask, k)))
        context = quotient(state[0])  # [B, H, D, E]
        y = q.to(context.dtype).softmax(-1) @ context
        return Out(y.to(q.dtype), state)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=2, max_length=3))
        x = one_head((1, 0), (0, 2), (1, 1))
        maps = mechanism.weights(x, x, x, Mask.packed(3, x.device, causal=False))
        return maps[:, :, :1], one_head((0.332953, 0.292490, 0.374557))
