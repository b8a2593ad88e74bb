"""Selective attention: A = softmax(s_ij - sum_(j<m<i) relu(s0_mj)), s = q k^T / sqrt(D).

Scaled-dot attention in which each token m, by its scores s0 in the first head, lowers the scores of the keys that it
attends to for all later queries: in every head they attend less to a key, the more the tokens between selected it. A
token does not select its own key, and the first token of the sequence (j = 0), which often stands for nothing, is
never lowered. There are no additional weights. s0 is q k^T / sqrt(D) before caps, biases and noise; the sums are added
like a position bias: `residual_scores` does not carry them. A state keeps one sum per key beside the cache, to which
every further token adds.

Decoder only: tokens select for the tokens after them. Time T*S*D per head, as scaled-dot. Dropping keys with large
sums, which saves memory in the source, is not included. Source: Leviathan et al. 2024, "Selective Attention Improves
Transformer", section 3.

Worked number: D = 1, q = 0 except 1 for the third token, all k = ln 2: the third token has the score ln 2 for the
first, the second and itself, of which only the second is lowered. So the fourth query, whose own scores are 0, has the
weights 2/7, 1/7, 2/7, 2/7.
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
    """Softmax with lower scores for keys that earlier queries selected; cost T*S*D. For `key_heads` see `dot`."""

    encoder = False
    cross = False
    by_distance = True
    remembers_queries = True
    why = "a token masks earlier tokens for later queries"
    fuses_bias = True

    def _extend_cache(
        self, k: Tensor | None, v: Tensor | None, state: State, total: int
    ) -> tuple[Tensor | None, Tensor, State]:
        return super()._extend_cache(k, v, None if state is None else state[:2], total)

    def added(self, call: AttentionCall, keys: Tensor | None, state: State) -> tuple[Float[Tensor, "b H T S"], State]:
        """Return minus the sums as bias. The state is keys, values and the sums of the keys [B, 1, 1, S]."""
        assert call.q is not None
        assert keys is not None
        mask = call.mask
        if call.state is None and in_chunks(call.q, keys, state[1]):
            sums, total = selected_sums(call.q[:, 0], keys[:, 0], mask.q_pos, mask.k_pos, self.scale)
            bias = sums[:, None] if call.bias is None else call.bias + sums[:, None]
            return bias, (*state, total[:, None, None])
        # padding has position 0: it selects nothing, and need not be selected
        q_pos, k_pos = mask.q_pos[:, None, :, None], mask.k_pos[:, None, None, :]
        taken = self.scores(call.q[:, :1], keys[:, :1], mask).relu()  # [B, 1, T, S]
        taken = taken.masked_fill(~((k_pos > 0) & (k_pos < q_pos)), 0).to(widest(taken.dtype))
        before = taken.new_zeros((len(taken), 1, 1, 0)) if call.state is None else call.state[2]
        before = F.pad(before, (0, taken.shape[3] - before.shape[3]))  # new keys have no sums yet
        sums = torch.cat((before, taken), 2).cumsum(2)  # before each query, and after the last
        bias = -sums[:, :, :-1]
        bias = bias if call.bias is None else call.bias + bias
        return bias, (*state, sums[:, :, -1:])

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor | None:
        """Compute in chunks of scores and of what is subtracted from them."""
        if not in_chunks(q, k, v):
            return None
        return self.chunked(Softmax(), self.scale, (q,), (k,), v, mask, bias)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=4))
        q, k = one_head((0,), (0,), (1,), (0,)), one_head(*[(math.log(2),)] * 4)
        maps = mechanism.weights(q, k, k, Mask.packed(4, torch.device("cpu"), causal=True))
        return maps[:, :, 3:], one_head((2 / 7, 1 / 7, 2 / 7, 2 / 7))
