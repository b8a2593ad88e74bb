"""Selective attention: A = softmax(s_ij - sum_(j<m<i) relu(s0_mj)), s = q k^T / sqrt(D).

Scaled-dot attention in which each token m, by its scores s0 in the first head, takes from all later
queries what it has itself attended to: they see a key the less, in every head, the more the tokens
between wanted it.  A token does not select its own key, and the first of the text (j = 0), which
often stands for nothing, is never lessened.  No weights are added.  s0 is q k^T / sqrt(D) as it
stands, before caps, biases and noise; the sums are added as positions are: not carried by
`residual_scores`.  A state keeps one sum a key beside the cache, which every further token raises.

Decoder only: tokens select for those behind them.  Time T*S*D a head, as scaled-dot.  Dropping keys
once they are lessened much, which saves memory in the source, is not part of it.  Source:
Leviathan et al. 2024, "Selective Attention Improves Transformer", section 3.

Worked number: D = 1, q = 0 but 1 for the third token, all k = ln 2: the third token scores ln 2 at
the first, the second and itself, of which only the second is lessened.  So the fourth query, whose
own scores are 0, weighs 2/7, 1/7, 2/7, 2/7.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import AttentionCall, Mask, Shape, State, one_head
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.ops.linear_attention import widest
from attnkit.ops.score_chunks import Softmax, in_chunks
from attnkit.ops.selected_sums import selected_sums


class Selective(ScaledDot):
    """Softmax without what earlier queries took; cost T*S*D.  For `key_heads` see `dot`."""

    encoder = False
    cross = False
    by_distance = True
    remembers_queries = True
    why = "a token selects for the queries behind it"
    fuses_bias = True

    def _extend_cache(
        self, k: Tensor | None, v: Tensor | None, state: State, total: int
    ) -> tuple[Tensor | None, Tensor, State]:
        return super()._extend_cache(k, v, None if state is None else state[:2], total)

    def added(self, call: AttentionCall, keys: Tensor | None, state: State) -> tuple[Float[Tensor, "b H T S"], State]:
        """See `Scored.added`.  State: keys, values, what is taken from keys [B, 1, 1, S]."""
        assert call.q is not None
        assert keys is not None
        mask = call.mask
        if call.state is None and in_chunks(call.q, keys, state[1]):
            sums, total = selected_sums(call.q[:, 0], keys[:, 0], mask.q_pos, mask.k_pos, self.scale)
            bias = sums[:, None] if call.bias is None else call.bias + sums[:, None]
            return bias, (*state, total[:, None, None])
        # pads have position 0: they select nothing, and need not be selected
        q_pos, k_pos = mask.q_pos[:, None, :, None], mask.k_pos[:, None, None, :]
        taken = self.scores(call.q[:, :1], keys[:, :1], mask).relu()  # [B, 1, T, S]
        taken = taken.masked_fill(~((k_pos > 0) & (k_pos < q_pos)), 0).to(widest(taken.dtype))
        before = taken.new_zeros((len(taken), 1, 1, 0)) if call.state is None else call.state[2]
        before = F.pad(before, (0, taken.shape[3] - before.shape[3]))  # nothing from new keys yet
        sums = torch.cat((before, taken), 2).cumsum(2)  # before each query, and after the last
        bias = -sums[:, :, :-1]
        bias = bias if call.bias is None else call.bias + bias
        return bias, (*state, sums[:, :, -1:])

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor | None:
        """In chunks of scores and of what is taken from them."""
        if not in_chunks(q, k, v):
            return None
        return self.chunked(Softmax(), self.scale, (q,), (k,), v, mask, bias)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=4))
        q, k = one_head((0,), (0,), (1,), (0,)), one_head(*[(math.log(2),)] * 4)
        maps = mechanism.weights(q, k, k, Mask.packed(4, torch.device("cpu"), causal=True))
        return maps[:, :, 3:], one_head((2 / 7, 1 / 7, 2 / 7, 2 / 7))
