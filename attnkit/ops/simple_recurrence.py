"""The recurrence of simple recurrent units: c_t = f_t c_{t-1} + (1 - f_t) x_t.

The forget gate f_t = sigmoid(g_t + v c_{t-1}) multiplies the state by a vector, elementwise, so that a step needs no
matrix product. Source: Lei et al. 2018, "Simple Recurrent Units for Highly Parallelizable Recurrence", section 3.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.ops import fast_cpu
from attnkit.ops.autograd import once_differentiable


def simple_recurrence(
    x: Float[Tensor, "R T W"], g: Float[Tensor, "R T W"], v: Float[Tensor, " W"], start: Float[Tensor, "R W"]
) -> Float[Tensor, "R T W"]:
    """Return the states c_1 to c_T after `start`, by two operations per step forward and backward.

    The plain implementation is `plain_recurrence`.
    """
    if fast_cpu.PLAIN or torch.compiler.is_compiling():
        return plain_recurrence(x, g, v, start)
    states: Tensor = _SimpleRecurrence.apply(x, g, v, start)  # type: ignore[no-untyped-call]
    return states


def plain_recurrence(x: Tensor, g: Tensor, v: Tensor, start: Tensor) -> Tensor:
    """Return `simple_recurrence` by plain autograd."""
    states, state = [], start
    for t in range(x.shape[1]):
        gate = torch.sigmoid(g[:, t] + v * state)
        state = gate * state + (1 - gate) * x[:, t]
        states.append(state)
    return torch.stack(states, 1)


class _SimpleRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, v: Tensor, start: Tensor) -> Tensor:
        states, gates = torch.empty_like(x), torch.empty_like(g)
        state = start
        for t in range(x.shape[1]):
            gate = torch.addcmul(g[:, t], v, state, out=gates[:, t]).sigmoid_()  # kept for backward
            state = torch.lerp(x[:, t], state, gate, out=states[:, t])
        ctx.save_for_backward(x, v, start, states, gates)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "R T W"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, v, start, states, gates = ctx.saved_tensors
        before = torch.cat((start[:, None], states[:, :-1]), 1)
        by_gate = (before - x) * gates * (1 - gates)  # d c_t / d g_t
        by_state = torch.addcmul(gates, by_gate, v)  # d c_t / d c_{t-1}, directly and through the gate
        dstates = torch.empty_like(grad)  # gradients of the states, with those from later states
        carried = torch.zeros_like(start)
        for t in reversed(range(grad.shape[1])):
            torch.add(grad[:, t], carried, out=dstates[:, t])
            carried = dstates[:, t] * by_state[:, t]
        to_g = dstates * by_gate
        return dstates - dstates * gates, to_g, (to_g * before).sum((0, 1)), carried
