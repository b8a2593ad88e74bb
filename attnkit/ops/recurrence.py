"""Checkpointed recurrence over positions, recomputed in blocks in the backward pass.

The plain implementation is one call of the rule for the whole sequence.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnkit.ops.autograd import once_differentiable

Rule: TypeAlias = Callable[..., tuple[Tensor, Tensor]]
"""(*sequences [B, H, L, ...], state) -> (outputs [B, H, L, E], last state)."""


def scan(rule: Rule, block: int, state: Tensor | None, *sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of `rule` for sequences [B, H, T, ...], computed in blocks that fit into the cache.

    Only the state at the start of each block is kept for the backward pass. The rule must depend on no tensors with
    gradients other than its arguments. The state may be None if the rule accepts it and T <= `block`.
    """
    if sequences[0].shape[2] <= block or torch.compiler.is_compiling():
        return rule(*sequences, state)
    y, end = _Scan.apply(rule, block, state, *sequences)  # type: ignore[no-untyped-call]
    return y, end


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rule: Rule, block: int, state: Tensor, *sequences: Tensor) -> tuple[Tensor, Tensor]:
        length = sequences[0].shape[2]
        ctx.rule = rule
        ctx.spans = [slice(first, min(first + block, length)) for first in range(0, length, block)]
        outputs, states = [], []
        for span in ctx.spans:
            states.append(state)
            output, state = rule(*(x[:, :, span] for x in sequences), state)
            outputs.append(output)
        ctx.save_for_backward(*sequences, *states)
        return torch.cat(outputs, 2), state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dstate: Tensor) -> tuple[Any, ...]:
        blocks = len(ctx.spans)
        sequences, states = ctx.saved_tensors[:-blocks], ctx.saved_tensors[-blocks:]
        gradients = [torch.empty_like(x) for x in sequences]
        for span, state in zip(reversed(ctx.spans), reversed(states), strict=True):
            leaves = [x[:, :, span].detach().requires_grad_() for x in sequences]
            start = state.detach().requires_grad_()
            with torch.enable_grad():
                outputs = ctx.rule(*leaves, start)
            *parts, dstate = torch.autograd.grad(outputs, (*leaves, start), (dy[:, :, span], dstate))
            for total, part in zip(gradients, parts, strict=True):
                total[:, :, span] = part
        return None, None, dstate, *gradients
