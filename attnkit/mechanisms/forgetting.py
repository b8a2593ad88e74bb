"""Forgetting attention: A = softmax(q_i k_j / sqrt(D) + sum_(j<m<=i) log f_m), f_m = sigmoid(g_m).

Scaled-dot attention in which each token m, by one forget gate per head, weakens all keys before it: a decay of the
scores that depends on the tokens. g is the layer's gate projection of the token, plus `gate_bias`; with a large bias
training starts near f = 1, which is scaled-dot. The sums of logarithms run over the tokens of a row without padding
and are cached, one number per token and head. They are added like a position bias: `residual_scores` does not carry
them.

Decoder only: forgetting runs from the past to the query. Time T*S*D per head, as scaled-dot. The output gate, output
norm and shifts of keys and values of the source's "Pro" block are not included (`output_gate` and `qk_norm` are
options of the layer). Source: Lin et al. 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate",
equations 3 and 4.

Worked number: D = 1, q = k = 0, f = 1/2 everywhere: the key two steps back scores ln 1/4, the key one step back ln
1/2, so the weights of the third query are 1/7, 2/7, 4/7.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import AttentionCall, Mask, Out, Shape, append, one_head, real_keys
from attnkit.errors import UsageError
from attnkit.mechanisms.dot import fused_dot
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.ops.fast_cpu import PLAIN_ELSEWHERE, few_scores
from attnkit.ops.grouped_heads import repeat_heads
from attnkit.ops.linear_attention import widest
from attnkit.recipe.score_options import ScoreOptions

PLAIN = ScoreOptions()
"""Options with which the decay can be moved into the keys; qk_norm is allowed too, as the layer applies it."""
PLAIN_UP_TO = 32 * 32
"""Number of scores per head up to which plain products are faster than the fused kernel on a CPU."""


class Forgetting(ScaledDot):
    """Softmax with a running decay; cost T*S*D. For `key_heads` see `dot`."""

    uses = "qkvg"
    gates = 1
    encoder = False
    cross = False
    by_distance = True
    why = "its forget gates lie between a past key and the query"

    def __init__(self, shape: Shape, *, gate_bias: float = 0.0, key_heads: int | None = None) -> None:
        super().__init__(shape, key_heads=key_heads)
        if not math.isfinite(gate_bias):
            raise UsageError(f"forgetting: gate_bias must be finite, got {gate_bias}")
        self.gate_bias = gate_bias

    def answer(self, call: AttentionCall) -> Out:
        """Compute as `Scored.answer`. The state is keys and values, and the running sums [B, H, S, 1]."""
        q, k, v, mask, state, prior, bias, gates = call
        if k is None or gates is None:
            raise ValueError("forgetting needs queries, keys, values and gates at every call")
        logs = F.logsigmoid(gates.to(widest(gates.dtype)) + self.gate_bias)
        real = real_keys(mask, k)
        if real is not None:
            logs = logs.masked_fill(~real[:, None, :, None], 0)  # f = 1 for padding
        cache, sums = (None, None) if state is None else state
        new_sums = logs.cumsum(2)
        new_sums = new_sums if sums is None else new_sums + sums[:, :, -1:]
        sums = append(sums, new_sums, mask.valid.shape[1])
        use_kernel = q is not None and not few_scores(q, sums, PLAIN_UP_TO)
        if use_kernel and k.device.type != "cpu":  # the kernel gets float32 here
            use_kernel = q.shape[2] * sums.shape[2] > PLAIN_ELSEWHERE  # type: ignore[union-attr]
        plain = prior is bias is None and self.evaluation_noise == 0
        if use_kernel and plain and self.modifiers._replace(qk_norm=False) == PLAIN and q is not None:
            keys, values, new_cache = self._extend_cache(k, v, cache, mask.valid.shape[1])
            assert keys is not None
            y = self.with_decay(q, keys, values, sums, mask)
            if y is not None:
                return Out(y, (new_cache, sums))
        decay = new_sums - sums.transpose(-1, -2)  # [B, H, T, S]
        out = super().answer(call._replace(state=cache, bias=decay if bias is None else decay + bias))
        return Out(out.y, (out.state, sums), out.scores)

    def with_decay(self, q: Tensor, k: Tensor, v: Tensor, sums: Tensor, mask: Mask) -> Float[Tensor, "B H T E"] | None:
        """Compute the output by torch's fused kernel; None if it is not faster.

        The sum at the query is the same for all of its keys and cancels, so one more channel of the keys holds minus
        their own sums, and that of the queries 1.
        """
        dtype, output_dtype, width = sums.dtype, v.dtype, v.shape[-1]
        k, v = (repeat_heads(x, q.shape[1]).to(dtype) for x in (k, v))
        relative = sums[:, :, -1:] - sums  # nearly 0 for the last keys, so that they lose no digits
        q = torch.cat((q.to(dtype) * self.scale, torch.ones_like(q[..., :1], dtype=dtype)), -1)
        with torch.autocast(q.device.type, enabled=False):  # 16 bits would round the sums
            y = fused_dot(q, torch.cat((k, relative), -1), F.pad(v, (0, 1)), mask, 1.0)
        return None if y is None else y[..., :width].to(output_dtype)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=3))
        x, mask = one_head((0,), (0,), (0,)), Mask.packed(3, torch.device("cpu"), causal=True)
        maps = mechanism.weights(x, x, x, mask, gates=x)
        return maps[:, :, 2:], one_head((1 / 7, 2 / 7, 4 / 7))
