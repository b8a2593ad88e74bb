"""Decaying linear attention: S_t = a_t S_(t-1) + k_t v_t^T, y_t = S_t^T q_t / sqrt(D).

The recurrence of retention (RetNet), Mamba-2 and gated linear attention (GLA): linear attention without features and
without a denominator, whose memory decays by a_t at every token. `gate` selects a_t:

- `fixed`: 1 - 2^(-5 - h) in head h, from 0 (the retention of RetNet). Nothing is learned.
- `head`: one gate per head, a_t = exp(-exp(log_rate) softplus(g + step_bias)), initialized as in `gated-delta` (as in
  Mamba-2, whose step also scales k_t; here it does not).
- `channel`: one gate per channel of the keys, a_t = sigmoid(g)^(1/16) (gated linear attention).

g is the layer's gate projection of the token. The norms, output gates and convolutions of the sources are not included
(`output_gate` is an option of the layer), nor is the rotation of RetNet (`model.positions: rope` is).

Padding does not change the state. Rows of the map do not sum to 1, and its entries may be negative. Training computes
chunks of 64 tokens, with square matrices inside each chunk and states between chunks; decoding keeps a state of
constant size. Decoder only, no position biases. Time T*D*E per head, memory T*(D + E). With a_t = 1 it is linear
attention with the identity as features and without its denominator.

Source: Sun et al. 2023, "Retentive Network: A Successor to Transformer for Large Language Models", equations 5 to 7;
Dao and Gu 2024, "Transformers are SSMs", section 5; Yang et al. 2024, "Gated Linear Attention Transformers with
Hardware-Efficient Training", equation 3 and section 4.4.

Worked number: D = 1, k = q = 1, head 0 of `fixed`, so a = 31/32: the third row of the map is (961/1024, 31/32, 1).
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask, Out, Shape, State, Unscored, one_head, real_keys
from attnkit.mechanisms.gated_delta import first_decays
from attnkit.ops.decayed_products import decayed_products
from attnkit.ops.linear_attention import widest
from attnkit.ops.recurrence import scan

CHUNK, BLOCK = 64, 512
"""Number of tokens in a chunk, and between the states that training keeps."""


class Decay(Unscored):
    """Decaying sum of outer products; cost T*D*E."""

    uses = "qkv"
    facts_with = {"gate": {"head": {"uses": "qkvg"}, "channel": {"uses": "qkvg"}}}
    encoder = False
    cross = False
    normalized = False
    cost = "T*D*D"
    onnx = ()
    state = "constant"
    why = "its memory is updated over one sequence, from left to right"

    def __init__(self, shape: Shape, *, gate: Literal["fixed", "head", "channel"] = "fixed") -> None:
        super().__init__(shape)
        self.gate = gate
        self.gates = {"fixed": 0, "head": 1, "channel": shape.head_width}[gate]  # type: ignore[misc]
        if gate == "head":
            self.log_rate, self.step_bias = first_decays(shape.heads)

    def attend(self, q: Tensor, k: Any, v: Any, mask: Mask, state: State, gates: Any) -> Out:
        """Compute the recurrence. The state is S [B, H, D, E]."""
        dtype = v.dtype
        q, k, v = (x.to(widest(x.dtype)) for x in (q, k, v))
        logs = self.log_decay(k, gates)
        real = real_keys(mask, k)
        if real is not None:
            pads = ~real[:, None, :, None]
            k, v, logs = (x.masked_fill(pads, 0) for x in (k, v, logs))  # log 1: no decay
        if state is None:
            state = v.new_zeros((*k.shape[:2], k.shape[3], v.shape[3]))
        q = q * q.shape[-1] ** -0.5
        if k.shape[2] == 1:  # decoding: one step of the recurrence
            state = state * logs.exp().transpose(-1, -2) + k.transpose(-1, -2) * v
            return Out((q @ state).to(dtype), state)
        y, state = scan(chunked, BLOCK, state, q, k, v, logs)
        return Out(y.to(dtype), state)

    def log_decay(self, k: Tensor, gates: Tensor | None) -> Tensor:
        """Return log a_t, [B, H, T, 1 or D] with D for a gate per channel; B is 1 for `fixed`."""
        if gates is None:
            heads = torch.arange(self.shape.heads, dtype=k.dtype, device=k.device)
            return torch.log1p(-(2.0 ** (-5 - heads)))[None, :, None, None].expand(-1, -1, k.shape[2], -1)
        gates = gates.to(k.dtype)
        if self.gate == "channel":
            return F.logsigmoid(gates) / 16  # temperature of the source
        speed = F.softplus(gates + self.step_bias.to(k.dtype)[:, None, None])
        return -self.log_rate.to(k.dtype).exp()[:, None, None] * speed

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism, x = cls(Shape(heads=1, head_width=1, max_length=3)), one_head((1,), (1,), (1,))
        maps = mechanism.weights(x, x, x, Mask.packed(3, x.device, causal=True))
        return maps[:, :, 2:], one_head((961 / 1024, 31 / 32, 1))


def chunked(q: Tensor, k: Tensor, v: Tensor, logs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the recurrence for T tokens, with q scaled: square matrices inside chunks, states between them."""
    length, size = k.shape[2], min(CHUNK, k.shape[2])
    if padding := -length % size:
        q, k, v, logs = (F.pad(x, (0, 0, 0, padding)) for x in (q, k, v, logs))
    q, k, v, logs = (torch.unflatten(x, 2, (-1, size)) for x in (q, k, v, logs))
    total = logs.cumsum(-2)  # [B, H, chunks, C, 1 or D]
    since, until = total.exp(), (total[..., -1:, :] - total).exp()  # since chunk start, until end
    (squares,) = decayed_products([q], k, total)
    updates = (k * until).transpose(-1, -2) @ v  # [B, H, chunks, D, E]
    states, state = states_before_chunks(state, since, updates)
    y = squares @ v + (q * since) @ states
    return y.flatten(2, 3)[:, :, :length], state


def states_before_chunks(state: Tensor, since: Tensor, updates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states at the start of all chunks, [B, H, chunks, D, E], and the state after the last chunk.

    `since` is the decay since the start of each chunk, [B, H, chunks, C, 1 or D]; `updates` are added at its end.
    """
    states = list[Tensor]()
    for update, end in zip(updates.unbind(2), since[..., -1, :, None].unbind(2), strict=True):
        states.append(state)
        state = state * end + update
    return torch.stack(states, 2), state
