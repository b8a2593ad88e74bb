"""Gated delta rule: S_t = a_t S_(t-1) (I - b_t k_t k_t^T) + b_t v_t k_t^T, y_t = S_t q_t.

A linear recurrence whose state is a memory from keys to values: it decays by a_t, erases the share b_t of what it
holds under the key k_t, and writes v_t there. q and k are scaled to length 1. Both gates come from the layer's gate
projection g of the token, two numbers per head: a_t = exp(-exp(log_rate) softplus(g_1 + step_bias)) with log_rate and
step_bias learned per head, b_t = sigmoid(g_2). At initialization exp(log_rate) is in [1, 16] and softplus(step_bias)
in [.001, .1], so heads forget at slow to fast rates. Options:

- `decay: channel` gives every channel of the keys its own a_t, S_t = (I - b_t k_t k_t^T) Diag(a_t) S_(t-1) + b_t k_t
  v_t^T in the transposed S of that source (Kimi delta attention), with a gate and a step_bias per channel.
- `decay: none` is the delta rule without decay, a_t = 1 (DeltaNet).
- `erase: channel` separates erasing from writing: (I - k_t (b_t * k_t)^T) with b_t = sigmoid of a gate per channel of
  the keys, and w_t k_t v_t^T with w_t = sigmoid of another gate per head. The source (Gated DeltaNet-2) has a write
  gate per channel of the values, which no single map of tokens to tokens expresses.
- `strength: 2` doubles the erase gates, so that the transition of the state has eigenvalues in (-1, 1) along k_t
  instead of (0, 1), and a state can change sign at each token, as parity needs.
- `steps: n` applies the rule n times per token, each with its own key, value and gates, after one decay
  (DeltaProduct): products of n reflections are rotations, which distinguish permutations. Keys and values of the steps
  are further heads of the projections, step after step; the map of tokens is the sum of the steps' maps.

It reads from left to right whether or not the mask is causal: in an encoder it is one-directional. Padding does not
change the state. Rows of the map need not sum to 1, and its entries may be negative. The convolution, output norm and
output gate of the paper's layer are not included.

Training solves one triangular system per chunk of tokens (the WY form of the product of the reflections) and passes
the state from chunk to chunk; decoding keeps a state of constant size. Limits: self-attention only; no score matrix,
so no position biases. Time T*D*E per head, memory T*(D + E).

Source: Yang, Kautz, Hatamizadeh 2025, "Gated Delta Networks: Improving Mamba2 with Delta Rule", equation 10 and
section 3.3; ranges of the decay as in its layer, after Mamba2; Kimi Team 2025, "Kimi Linear: An Expressive, Efficient
Attention Architecture", equation 1; Hatamizadeh, Choi, Kautz 2026, "Gated DeltaNet-2: Decoupling Erase and Write in
Linear Attention"; Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
without decay; Grazzi et al. 2025, "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues"; Siems et al.
2025, "DeltaProduct: Improving State-Tracking in Linear RNNs via Householder Products", equation 3.

Worked number: D = E = 1, k = q = 1, all a_t = b_t = 1/2: S_1 = v_1 / 2, and S_2 = 1/2 S_1 (1 - 1/2) + v_2 / 2, so the
second row of the map is (.125, .5).
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import Mask, Out, Shape, State, Unscored, at_least, one_head, real_keys
from attnkit.errors import UsageError
from attnkit.ops.decayed_products import decayed_products
from attnkit.ops.delta_chunks import delta_chunks
from attnkit.ops.fast_cpu import usable
from attnkit.ops.linear_attention import widest
from attnkit.ops.recurrence import scan

CHUNKS = {"cpu": 32}
"""Number of tokens in one triangular system, by device; on a CPU 64 take 1.3 to 1.4 times as long, at any length."""
CHUNK = 64
"""The same on other devices, where fewer steps matter more."""
BLOCK = 512
"""Number of tokens between the states that training keeps; a multiple of all these."""
RATES, STEPS = (1.0, 16.0), (1e-3, 1e-1)
"""Initial ranges of exp(log_rate) and softplus(step_bias)."""


class GatedDelta(Unscored):
    """Decaying memory with the delta rule; cost T*D*E."""

    uses = "qkvg"
    gates = 2
    cross = False
    normalized = False
    cost = "T*D*D"
    onnx = ()
    state = "constant"
    why = "its memory is updated over one sequence, from left to right"

    def __init__(
        self,
        shape: Shape,
        *,
        decay: Literal["scalar", "channel", "none"] = "scalar",
        erase: Literal["scalar", "channel"] = "scalar",
        strength: float = 1.0,
        steps: int = 1,
    ) -> None:
        super().__init__(shape)
        self.separate_write = erase == "channel"
        if not 0 < strength <= 2:
            raise UsageError(f"gated-delta: strength must be above 0 and at most 2, got {strength}")
        self.strength, self.steps = strength, at_least("gated-delta", "steps", steps)
        self.key_sets = self.value_sets = steps
        self.decays = {"none": 0, "scalar": 1, "channel": shape.head_width}[decay]
        self.erases = shape.head_width if self.separate_write else 1
        self.gates = self.decays + steps * (self.erases + self.separate_write)  # type: ignore[misc]
        if self.decays:
            channels = (shape.head_width,) if decay == "channel" else ()
            self.log_rate, self.step_bias = first_decays(shape.heads, *channels)

    def attend(self, q: Tensor, k: Any, v: Any, mask: Mask, state: State, gates: Any) -> Out:
        """Compute the recurrence. The state is S^T [B, H, D, E]."""
        dtype = v.dtype
        q, k, v, gates = (x.to(widest(x.dtype)) for x in (q, k, v, gates))
        real = real_keys(mask, k)
        if real is not None:
            pads = ~real[:, None, :, None]
            k, v, gates = (x.masked_fill(pads, 0) for x in (k, v, gates))
        q, k, v, log_decay, erase, write = self.rules(q, k, v, gates)
        if real is not None:
            pads = pads.repeat_interleave(self.steps, 2)
            erase, write = (x.masked_fill(pads, 0) for x in (erase, write))
            log_decay = None if log_decay is None else log_decay.masked_fill(pads, 0)
        # the state may stay None within one block, in a compiled graph only within one chunk
        max_tokens = chunk(k) if torch.compiler.is_compiling() else BLOCK
        if state is None and not 1 < k.shape[2] <= max_tokens:
            state = v.new_zeros((*k.shape[:2], k.shape[3], v.shape[3]))
        if k.shape[2] == 1:
            assert state is not None
            y, state = one_step(q, k, v, log_decay, erase, write, state)
        elif log_decay is None:
            y, state = scan(undecayed, BLOCK, state, q, k, v, erase, write)
        else:
            y, state = scan(chunked, BLOCK, state, q, k, v, log_decay, erase, write)
        return Out(y[:, :, self.steps - 1 :: self.steps].to(dtype), state)

    def rules(
        self, q: Tensor, k: Tensor, v: Tensor, gates: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor]:
        """Return queries, keys, values, log a, erase and write gates of all steps, n per token.

        The first step of a token has its decay; its query reads the state after the last step.
        """
        steps, heads = self.steps, self.shape.heads
        sizes = [self.decays, steps * self.erases, steps * self.separate_write]
        decay, *more = torch.split(gates, sizes, -1)
        log_decay = None
        if self.decays:
            rate = self.log_rate.to(gates.dtype).exp()[:, None, None]
            bias = self.step_bias.to(gates.dtype).reshape(heads, 1, self.decays)
            log_decay = -rate * F.softplus(decay + bias)  # [B, H, T, 1 or D]
        erase, write = (torch.unflatten(x, -1, (steps, -1)).flatten(2, 3) for x in more)
        erase = self.strength * erase.sigmoid()  # [B, H, n T, 1 or D]
        write = write.sigmoid() if self.separate_write else erase  # [B, H, n T, 1]
        if steps > 1:
            q = q.repeat_interleave(steps, 2)
            if log_decay is not None:
                log_decay = F.pad(log_decay[:, :, :, None], (0, 0, 0, steps - 1)).flatten(2, 3)
            k, v = (torch.unflatten(x, 1, (steps, heads)).permute(0, 2, 3, 1, 4).flatten(2, 3) for x in (k, v))
        return q, k, v, log_decay, erase, write

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=2)).double()
        nn.init.zeros_(mechanism.log_rate)
        nn.init.zeros_(mechanism.step_bias)
        x, gates = one_head((1,), (1,)), one_head((0, 0), (0, 0))
        mask = Mask.packed(2, x.device, causal=True)
        return mechanism.weights(x, x, x, mask, gates=gates), one_head((0.5, 0), (0.125, 0.5))


def first_decays(heads: int, *channels: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Return log_rate [heads] and step_bias [heads, *channels] at initialization, in the ranges above."""
    low, high = (math.log(step) for step in STEPS)
    step = torch.empty(heads, *channels).uniform_(low, high).exp()
    log_rate = torch.empty(heads).uniform_(*RATES).log()
    return nn.Parameter(log_rate), nn.Parameter(step.expm1().log())  # the inverse of softplus


def chunk(x: Tensor) -> int:
    """Return the number of tokens in one triangular system on this tensor's device."""
    return CHUNKS.get(x.device.type, CHUNK)


def even_size(length: int, limit: int) -> int:
    """Return the length of equal chunks that have at most `limit` tokens."""
    chunks = -(-length // limit)
    return -(-length // chunks)


def one_step(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, erase: Tensor, write: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the formula for one token: q, k [B, H, 1, D], v [B, H, 1, E], gates [B, H, 1, 1 or D]."""
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    if log_decay is not None:
        state = state * log_decay.exp().transpose(-1, -2)
    update = v * write - (k * erase) @ state
    state = state + k.transpose(-1, -2) * update
    return q @ state, state


def undecayed(
    q: Tensor, k: Tensor, v: Tensor, erase: Tensor, write: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute `chunked` with every a = 1."""
    return chunked(q, k, v, None, erase, write, state)


def chunked(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, erase: Tensor, write: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the formula for T tokens; without a state they are the first tokens.

    With G_ij = a_(j+1) ... a_i within a chunk that starts from S, the updates n_i that token i writes satisfy n_i +
    sum_(j<i) (b_i k_i)^T G_ij k_j n_j = w_i v_i - (b_i k_i)^T G_i0 S: one system for all tokens. (S is stored as [D,
    E]; w = b without `erase: channel`.)
    """
    length = k.shape[2]
    # the length is not known in a compiled graph, so it is not split evenly
    size = min(chunk(k), length) if torch.compiler.is_compiling() else even_size(length, chunk(k))
    if (log_decay is None or log_decay.shape[-1] == 1) and usable(q, k, v, state):
        return delta_chunks(size, q, k, v, log_decay, erase, write, state)
    if state is None and size < length:
        state = v.new_zeros((*k.shape[:2], k.shape[3], v.shape[3]))
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    inputs = [q, k, v * write, k * erase, *([] if log_decay is None else [log_decay])]
    if padding := -length % size:
        inputs = [F.pad(x, (0, 0, 0, padding)) for x in inputs]
    # [B, H, chunks, C, D]
    q, k, v, left, *logs = (torch.unflatten(x, 2, (-1, size)) for x in inputs)
    left_since, q_since, k_until, ends = left, q, k, None
    if logs:
        total = logs[0].cumsum(-2)
        overlap, squares = decayed_products([left, q], k, total)
        since = total.exp()  # G_i0
        k_until = k * (total[..., -1:, :] - total).exp()  # decay from the token to the end of the chunk
        left_since, q_since, ends = left * since, q * since, since[..., -1, :, None].unbind(2)
    else:
        overlap, squares = left @ k.transpose(-1, -2), (q @ k.transpose(-1, -2)).tril()
    right = v if state is None else torch.cat((v, left_since), -1)
    # the diagonal is taken as 1, and entries above it are not read
    solved = torch.linalg.solve_triangular(overlap, right, upper=False, unitriangular=True)
    written = k_until.transpose(-1, -2)
    if state is None:
        return (squares @ solved)[:, :, 0], (written @ solved)[:, :, 0]
    fresh, stale = solved.split((v.shape[-1], k.shape[-1]), -1)
    states, news = list[Tensor](), list[Tensor]()
    for number, (own, old, keys) in enumerate(zip(fresh.unbind(2), stale.unbind(2), written.unbind(2), strict=True)):
        states.append(state)
        news.append(own - old @ state)
        kept = state if ends is None else state * ends[number]
        state = kept + keys @ news[-1]
    y = q_since @ torch.stack(states, 2) + squares @ torch.stack(news, 2)
    return y.flatten(2, 3)[:, :, :length], state
