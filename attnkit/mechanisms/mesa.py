"""Mesa layer: y_t = V_t (K_t + L)^-1 q_t, K_t = a_t K_(t-1) + b_t k_t k_t^T, V_t with v_t k_t^T.

Linear attention reads the sums of values under keys directly; the mesa layer reads the linear map that fits them best:
(K + L)^-1 makes V the ridge regression of all values on all keys so far, each weighted by its strength b_t and decayed
by a_t since. So similar keys do not blur. q and k are scaled to length 1. Both gates come from the layer's gate
projection of the token, two numbers per head: a_t = sigmoid(g_1), b_t = sigmoid(g_2). L is a learned diagonal,
softplus(.) + 1/4, initially 1. `decay: none` has a_t = 1 and one gate.

With decay it reads from left to right, and is for decoders. Without decay, an encoder fits all tokens of a row at
once. Self-attention only. Padding does not change the sums. Rows of the map need not sum to 1, and its entries may be
negative. Systems of D equations, one per token, are solved to rounding: on a CPU by conjugate gradients, as in the
source, if 24 steps suffice; otherwise exactly, in blocks of 16 tokens, whose systems are formed. Decoding keeps sums
of constant size. Time T*D*D*D per head, memory T*D*(D + E)/64 (/16 if systems are formed). The convolutions and the
output norm of the source's layer are options of the layer (`short_conv`, `output_norm`).

Source: von Oswald et al. 2025, "MesaNet: Sequence Modeling by Locally Optimal Test-Time Training"; gates, L and its
bound as in the layer of flash-linear-attention.

Worked number: D = 1, k = q = 1, all a_t = b_t = 1/2, L = 1: K_1 = 1/2 and K_2 = 3/4, so the second row of the map is
(1/4, 1/2) / (3/4 + 1) = (1/7, 2/7).
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import Mask, Out, Shape, State, Unscored, one_head, real_keys
from attnkit.mechanisms.decay import states_before_chunks
from attnkit.ops.conjugate_gradients import Systems, solution
from attnkit.ops.fast_cpu import usable
from attnkit.ops.linear_attention import widest
from attnkit.ops.recurrence import scan

BLOCK, CHUNK = 16, 64
"""Number of tokens whose D x D systems are formed at once, and number of tokens in a chunk that forms none."""
LONG = 256
"""Number of tokens between the states that training keeps; the rest is recomputed."""
MIN_RIDGE, INITIAL_RIDGE = 0.25, 1.0
"""Lower bound and initial value of L."""


class Mesa(Unscored):
    """Best linear map from keys to values so far; cost T*D^3."""

    uses = "qkvg"
    facts_with = {"decay": {"none": {"encoder": True}}}
    encoder = False
    cross = False
    normalized = False
    cost = "T*D*D*D"
    onnx = ()
    state = "constant"
    why = "it fits the keys and values of one sequence, with decay from left to right"

    def __init__(self, shape: Shape, *, decay: Literal["scalar", "none"] = "scalar") -> None:
        super().__init__(shape)
        self.decays = decay == "scalar"
        self.gates = 1 + self.decays  # type: ignore[misc]
        start = math.log(math.expm1(INITIAL_RIDGE - MIN_RIDGE))  # the inverse of softplus
        self.ridge = nn.Parameter(torch.full((shape.heads, shape.head_width), start))

    def attend(self, q: Tensor, k: Any, v: Any, mask: Mask, state: State, gates: Any) -> Out:
        """Compute the layer. The state is K and V^T, in units of L, [B, H, D, D + E]."""
        dtype = v.dtype
        q, k, v, gates = (x.to(widest(x.dtype)) for x in (q, k, v, gates))
        with torch.autocast(v.device.type, enabled=False):  # 16 bits would spoil the systems
            y, state = self.answers(q, k, v, gates, mask, state)
        return Out(y.to(dtype), state)

    def answers(
        self, q: Tensor, k: Tensor, v: Tensor, gates: Tensor, mask: Mask, state: State
    ) -> tuple[Tensor, State]:
        """Return the output and the state for inputs of at least 32 bits."""
        logs, strength = F.logsigmoid(gates[..., :-1]), gates[..., -1:].sigmoid()
        logs = logs if self.decays else torch.zeros_like(strength)
        real = real_keys(mask, k)
        if real is not None:
            pads = ~real[:, None, :, None]
            k, v, logs, strength = (x.masked_fill(pads, 0) for x in (k, v, logs, strength))  # a = 1
        # dividing q and k by the root of L, which is constant, turns L into the identity
        scale = (F.softplus(self.ridge.to(q.dtype)) + MIN_RIDGE).sqrt()[:, None]
        q, k = F.normalize(q, dim=-1) / scale, F.normalize(k, dim=-1) / scale
        if not mask.causal:
            sums = (k * strength).transpose(-1, -2) @ torch.cat((k, v), -1)
            return q @ solve_ridge(*split(sums)), sums
        if state is None and k.shape[2] > LONG:
            state = empty_state(k, v)
        return scan(solve, LONG, state, q, k, v, logs, strength)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism, x = cls(Shape(heads=1, head_width=1, max_length=2)), one_head((1,), (1,))
        mask, gates = Mask.packed(2, x.device, causal=True), one_head((0, 0), (0, 0))
        maps = mechanism.weights(x, x, x, mask, gates=gates)
        return maps, one_head((1 / 3, 0), (1 / 7, 2 / 7))


def split(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Return K [..., D, D] and V^T [..., D, E] of a state."""
    width = sums.shape[-2]
    return sums[..., :width], sums[..., width:]


def solve_ridge(squares: Tensor, right: Tensor) -> Tensor:
    """Return (K + I)^-1 right, for K [..., D, D] and right [..., D, n]."""
    system = squares + torch.eye(squares.shape[-1], dtype=squares.dtype, device=squares.device)
    x: Tensor = torch.linalg.solve_ex(system, right).result  # unchecked: no wait for a device
    return x


def empty_state(k: Tensor, v: Tensor) -> Tensor:
    """Return the state before the first token."""
    return v.new_zeros((*k.shape[:2], k.shape[3], k.shape[3] + v.shape[3]))


def solve(
    q: Tensor, k: Tensor, v: Tensor, logs: Tensor, strength: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the recurrence for T tokens, with q and k in units of L, log a and b [B, H, T, 1]."""
    if k.shape[2] > 1 and usable(q, k, v, state):
        result = solve_iteratively(q, k, v, logs, strength, state)
        if result is not None:
            return result
    return scan(solve_exactly, BLOCK, empty_state(k, v) if state is None else state, q, k, v, logs, strength)


def solve_iteratively(
    q: Tensor, k: Tensor, v: Tensor, logs: Tensor, strength: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Compute `solve_exactly` by conjugate gradients, also without a state; None if they need too many steps."""
    length = k.shape[2]
    size = -(-length // -(-length // CHUNK))
    inputs = [F.pad(x, (0, 0, 0, -length % size)) for x in (q, k, v, logs, strength)]
    q, k, v, logs, strength = (torch.unflatten(x.contiguous(), 2, (-1, size)) for x in inputs)
    total = logs.cumsum(-2)  # [B, H, chunks, C, 1]
    later = torch.ones(size, size, dtype=torch.bool).triu(1)
    fade = (total - total.transpose(-1, -2)).masked_fill(later, -torch.inf).exp()
    since, until = total.exp(), (total[..., -1:, :] - total).exp()  # since chunk start, until end
    updates = (k * strength * until).transpose(-1, -2) @ torch.cat((k, v), -1)  # [.., D, D + E]
    weights = fade * strength.transpose(-1, -2)
    parts, before = [k, weights], None
    if state is None and size == length:
        state = updates[:, :, 0]
    else:
        state = empty_state(k[:, :, 0], v[:, :, 0]) if state is None else state
        states, state = states_before_chunks(state, since, updates)
        squares, before = split(states)
        parts += [since, squares]
    x = solution(Systems(*(x.flatten(0, 2) for x in parts)), q.flatten(0, 2))
    if x is None:
        return None
    x = x.view_as(q)
    y = (x @ k.transpose(-1, -2) * weights) @ v
    y = y if before is None else y + (x * since) @ before
    return y.flatten(2, 3)[:, :, :length], state


def solve_exactly(
    q: Tensor, k: Tensor, v: Tensor, logs: Tensor, strength: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute `solve` with one system of D equations per token."""
    length, size = k.shape[2], min(BLOCK, k.shape[2])
    inputs = [F.pad(x, (0, 0, 0, -length % size)) for x in (q, k, v, logs, strength)]
    q, k, v, logs, strength = (torch.unflatten(x, 2, (-1, size)) for x in inputs)
    total = logs.cumsum(-2)  # [B, H, blocks, C, 1]
    since, until = total.exp(), (total[..., -1:, :] - total).exp()  # since chunk start, until end
    written = k * strength
    updates = (written * until).transpose(-1, -2) @ torch.cat((k, v), -1)  # [.., D, D + E]
    states, state = states_before_chunks(state, since, updates)
    old_squares, old_values = split(states)
    later = torch.ones(size, size, dtype=torch.bool, device=k.device).triu(1)
    fade = (total - total.transpose(-1, -2)).masked_fill(later, -torch.inf).exp()
    products = fade @ (written.unsqueeze(-1) * k.unsqueeze(-2)).flatten(-2)  # [.., blocks, C, D D]
    squares = torch.unflatten(products, -1, (k.shape[-1], -1))
    squares = squares + since.unsqueeze(-1) * old_squares.unsqueeze(-3)  # [.., C, D, D]
    x = solve_ridge(squares, q.unsqueeze(-1)).squeeze(-1)  # [B, H, blocks, C, D]
    y = (x @ written.transpose(-1, -2) * fade) @ v + (x * since) @ old_values
    return y.flatten(2, 3)[:, :, :length], state
