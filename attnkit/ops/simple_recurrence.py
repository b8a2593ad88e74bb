"""The recurrence of simple recurrent units: c_t = f_t c_{t-1} + (1 - f_t) x_t.

The forget gate f_t = sigmoid(g_t + v c_{t-1}) reads the state by a vector, so that nothing is
multiplied by a matrix from step to step.  Source: Lei et al. 2018, "Simple Recurrent Units for
Highly Parallelizable Recurrence", section 3.
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
    """The states c_1 to c_T after `start`; two operations a step in either pass.

    The plain form is `plain_recurrence`.
    """
    if fast_cpu.PLAIN or torch.compiler.is_compiling():
        return plain_recurrence(x, g, v, start)
    states: Tensor = _SimpleRecurrence.apply(x, g, v, start)  # type: ignore[no-untyped-call]
    return states


def plain_recurrence(x: Tensor, g: Tensor, v: Tensor, start: Tensor) -> Tensor:
    """See `simple_recurrence`."""
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
        # of each state by what its gate's sigmoid saw
        derivatives = (before - x) * gates * (1 - gates)
        through = torch.addcmul(gates, derivatives, v)  # of each state by the one before
        whole = torch.empty_like(grad)  # gradients that all later states add to
        carried = torch.zeros_like(start)
        for t in reversed(range(grad.shape[1])):
            torch.add(grad[:, t], carried, out=whole[:, t])
            carried = whole[:, t] * through[:, t]
        to_g = whole * derivatives
        return whole - whole * gates, to_g, (to_g * before).sum((0, 1)), carried
