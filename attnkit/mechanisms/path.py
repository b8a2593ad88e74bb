"""Path attention: A = softmax(q_i^T H_i ... H_(j+1) k_j / sqrt(D)), H_m = I - b_m w_m w_m^T.

Between a key and a query lies the product of one Householder-like matrix for each token after the key, up to the
query: a position encoding that depends on the tokens, and that can track states, like the transition of the delta
rule. w_m has length 1 and b_m = 2 sigmoid(.) is in (0, 2); both come from the layer's gate projection of the token, D
+ 1 numbers per head. With b = 0 it is scaled-dot. Padding has b = 0.

Decoder only: the product runs from the past to the query. Chunks of 64 tokens (32 for short sequences on a CPU) solve
one triangular system each (the WY form of the product), and carry all earlier keys to their end; a state keeps keys as
the last token sees them. Time T*S*D per head. The short convolution on w, its low-rank projection and the forget gate
of the source's layer are not included. Source: Yang et al. 2025, "PaTH Attention: Position Encoding via Accumulating
Householder Transformations", equations 2 to 5.

Worked number: D = 1, q = w = 1, b = 1/2, both keys 2 ln 2: the first is halved on its way, so the scores of the second
query are ln 2 and ln 4 and its weights 1/3, 2/3.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import AttentionCall, Mask, Out, Scored, Shape, append, one_head, real_keys
from attnkit.attention.mask import readable
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.ops.linear_attention import widest
from attnkit.ops.recomputed_blocks import RowBlock
from attnkit.ops.recomputed_chunks import recomputed

CHUNK, SHORT_CHUNK = 64, 32
"""Number of tokens in one triangular system, and in one of a sequence that a CPU does not compute in blocks: layers of
64 and 128 tokens take four fifths of the time."""


class Chunk(NamedTuple):
    """Queries, keys, vectors w and strengths b of neighboring tokens."""

    q: Float[Tensor, "B H C D"]
    k: Float[Tensor, "B H C D"]
    w: Float[Tensor, "B H C D"]
    strength: Float[Tensor, "B H C 1"]


class Path(ScaledDot):
    """Softmax whose keys are reflected on their way to the query; cost T*S*D."""

    uses = "qkvg"
    encoder = False
    cross = False
    positions = ("alibi", "relative")
    by_distance = True
    onnx = ()
    why = "the path runs from a past key to the query"
    fused = Scored.fused

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.gates = shape.head_width + 1  # type: ignore[misc]

    def answer(self, call: AttentionCall) -> Out:
        """Compute as `Scored.answer`. The state is keys as the last token sees them, and values."""
        q, k, v, mask, state, *_, gates = call
        if q is None or k is None or v is None or gates is None:
            raise ValueError("path needs queries, keys, values and gates at every call")
        if self.modifiers.key_norm:
            k = F.normalize(k, dim=-1) * self.key_length()
        wide = widest(q.dtype)
        q, k, gates = (x.to(wide) for x in (q * self.scale, k, gates))
        w, strength = F.normalize(gates[..., :-1], dim=-1), 2 * gates[..., -1:].sigmoid()
        real = real_keys(mask, k)
        if real is not None:
            k, w, strength = (x.masked_fill(~real[:, None, :, None], 0) for x in (k, w, strength))
        past = k[:, :, :0] if state is None else state[0].to(wide)
        total = mask.valid.shape[1]
        values = append(None if state is None else state[1], v, total)
        factor = self._factor(mask, wide)
        if not self.in_blocks(call, q.shape[2], total):
            rows, size = [], SHORT_CHUNK if readable(mask.valid) else CHUNK
            for tensors in zip(*(torch.split(x, size, 2) for x in (q, k, w, strength)), strict=True):
                scores, past = chunk_scores(Chunk(*tensors), past)
                rows.append(F.pad(scores, (0, total - scores.shape[3])))  # later keys are masked
            state = past.to(v.dtype), values
            return self.weigh(call, torch.cat(rows, 2), values, state, factor)
        ends = [*range(CHUNK, q.shape[2], CHUNK), q.shape[2]]
        starts = [0, *ends[:-1]]
        chunks = [RowBlock(a, b, past.shape[2] + b) for a, b in zip(starts, ends, strict=True)]
        bias = None if call.bias is None else call.bias.expand(-1, -1, q.shape[2], -1)

        def answers(chunk: RowBlock, keys: Tensor, read: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
            seen, bias, *rows = read
            assert seen is not None
            scores, keys = chunk_scores(Chunk(*rows), keys)  # type: ignore[arg-type]
            chunk_call = call._replace(mask=mask.part(*chunk), bias=bias)
            chunk_factor = None if factor is None else factor[:, :, chunk.first : chunk.last]
            return self.weigh(chunk_call, scores, seen, None, chunk_factor).y, keys

        y, past = recomputed(answers, chunks, past, (values, bias, q, k, w, strength))
        return Out(y, (past.to(v.dtype), values))

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=2))
        q, k = one_head((1,), (1,)), one_head((2 * math.log(2),), (2 * math.log(2),))
        gates = one_head((1, -math.log(3)), (1, -math.log(3)))
        mask = Mask.packed(2, q.device, causal=True)
        return mechanism.weights(q, k, k, mask, gates=gates)[:, :, 1:], one_head((1 / 3, 2 / 3))


def chunk_scores(
    chunk: Chunk, past: Float[Tensor, "B H S D"]
) -> tuple[Float[Tensor, "B H C S+C"], Float[Tensor, "B H S+C D"]]:
    """Return the scores of a chunk against earlier keys and its own, and all keys as its last token sees them.

    With M = (I + tril(diag(b) W W^T, -1))^-1 diag(b), the product of the tokens from b to a is I - sum w_x M_xy w_y^T
    over b <= y <= x <= a. Scores above the diagonal must not be read.
    """
    q, k, w, strength = chunk
    system = strength * (w @ w.transpose(-1, -2)).tril(-1)  # [B, H, C, C]
    # M is applied to w k^T for the earlier keys of the chunk (inner) and those before the chunk (outer)
    inner = strength * (w @ k.transpose(-1, -2)).tril(-1)
    outer = strength * (w @ past.transpose(-1, -2))  # [B, H, C, S]
    # the diagonal is taken as 1
    seen = torch.linalg.solve_triangular(system, torch.cat((outer, inner), -1), upper=False, unitriangular=True)
    keys = torch.cat((past, k), 2)  # [B, H, S + C, D]
    scores = q @ keys.transpose(-1, -2) - (q @ w.transpose(-1, -2)).tril() @ seen
    return scores, keys - seen.transpose(-1, -2) @ w
