"""Checkpointed recurrence over positions: blocks are computed again in the backward pass.

The plain form is the rule itself, called once for the whole sequence."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnkit.ops.autograd import once_differentiable

Rule: TypeAlias = Callable[..., tuple[Tensor, Tensor]]
"""(*sequences [B, H, L, ...], state) -> (answers [B, H, L, E], the state after them)."""


def scan(rule: Rule, block: int, state: Tensor | None, *sequences: Tensor) -> tuple[Tensor, Tensor]:
    """What `rule` answers for whole sequences [B, H, T, ...], in blocks that stay in the cache.

    The state may be None where the sequences are no longer than a block, and the rule bears it.

    Between the passes only the state at the start of each block is kept.  The rule must learn
    nothing: what it depends on comes in the sequences and the state.
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
        ctx.spans = [slice(at, min(at + block, length)) for at in range(0, length, block)]
        answers, states = [], []
        for span in ctx.spans:
            states.append(state)
            answer, state = rule(*(x[:, :, span] for x in sequences), state)
            answers.append(answer)
        ctx.save_for_backward(*sequences, *states)
        return torch.cat(answers, 2), state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dstate: Tensor) -> tuple[Any, ...]:
        count = len(ctx.spans)
        sequences, states = ctx.saved_tensors[:-count], ctx.saved_tensors[-count:]
        gradients = [torch.empty_like(x) for x in sequences]
        for span, state in zip(reversed(ctx.spans), reversed(states), strict=True):
            leaves = [x[:, :, span].detach().requires_grad_() for x in sequences]
            start = state.detach().requires_grad_()
            with torch.enable_grad():
                outputs = ctx.rule(*leaves, start)
            *parts, dstate = torch.autograd.grad(outputs, (*leaves, start), (dy[:, :, span], dstate))
            for whole, part in zip(gradients, parts, strict=True):
                whole[:, :, span] = part
        return None, None, dstate, *gradients
