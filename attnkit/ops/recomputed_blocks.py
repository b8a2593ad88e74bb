"""Checkpointed attention in blocks of queries, whose weights are recomputed in the backward pass."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import get_device_states, set_device_states

from attnkit.ops.autograd import once_differentiable
from attnkit.ops.grouped_heads import dot_scores, mix, value_gradient
from attnkit.ops.parameters import Place, computing_with, parameters_of


class RowBlock(NamedTuple):
    """Queries `first` to `last` (exclusive) and the first `seen` keys, to which they may attend."""

    first: int
    last: int
    seen: int


Weights = Callable[[RowBlock, Sequence[Tensor | None]], Tensor]
"""Function (block, slices of (q [B, H, T, D], keys [B, G, S, M], values [B, G, S, E], bias [b, h, T or 1, S])) ->
weights [b, H, t, s] of the block; of values it may use the shape only."""


def parts(tensors: Sequence[Tensor | None], block: RowBlock) -> list[Tensor | None]:
    """Return views of the q, keys, values and bias that a block reads."""
    q, keys, values, bias = tensors
    queries, seen = slice(block.first, block.last), slice(block.seen)
    rows = queries if bias is not None and bias.shape[2] > 1 else slice(1)
    return [
        None if q is None else q[:, :, queries],
        None if keys is None else keys[:, :, seen],
        None if values is None else values[:, :, seen],
        None if bias is None else bias[:, :, rows, seen],
    ]


def recomputed(
    weights: Weights, blocks: Sequence[RowBlock], tensors: Sequence[Tensor | None], module: nn.Module
) -> Tensor:
    """Return the outputs of all blocks [B, H, T, E]; weights are recomputed in the backward pass.

    `tensors` is q, keys, values and bias; `parts` slices it. `weights` may depend on parameters of `module`, but on no
    other tensors with gradients. Weights are recomputed with the current parameters of the module, such as 16-bit
    copies. Blocks that need most memory should come first, so that later blocks fit into the memory that they free.
    """
    if not torch.is_grad_enabled():
        return in_turn(weights, blocks, tensors)
    places, parameters = parameters_of(module), tuple(module.parameters())
    y: Tensor = RecomputedBlocks.apply(weights, blocks, places, *tensors, *parameters)  # type: ignore[no-untyped-call]
    return y


def in_turn(weights: Weights, blocks: Sequence[RowBlock], tensors: Sequence[Tensor | None]) -> Tensor:
    """Return the outputs of all blocks [B, H, T, E]."""
    y = None
    for block in blocks:
        block_inputs = parts(tensors, block)
        assert block_inputs[2] is not None
        output = mix(weights(block, block_inputs), block_inputs[2])
        if y is None:
            length = max(other.last for other in blocks)  # the last block may come first
            y = output.new_empty(*output.shape[:2], length, output.shape[3])
        y[:, :, block.first : block.last] = output
    assert y is not None, "there is a block"
    return y


def autocast_as_now(device: str) -> AbstractContextManager[Any]:
    """Return a context with the current autocast settings, for the backward pass, which runs outside of autocast."""
    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    enabled = torch.is_autocast_enabled(device)
    return torch.autocast(device, torch.get_autocast_dtype(device), enabled=enabled)


class RecomputedBlocks(torch.autograd.Function):
    """`torch.utils.checkpoint` for each block, with gradients accumulated in place.

    Otherwise the gradient of each slice would be as large as the whole tensor and lie between the scores of blocks in
    memory, which then fragments: a process took 2 to 4 times as much.
    """

    @staticmethod
    def forward(
        ctx: Any, weights: Weights, blocks: Sequence[RowBlock], places: Sequence[Place], *tensors: Tensor | None
    ) -> Tensor:
        """Return the outputs; `tensors` is q, keys, values, bias, then the parameters of the module, each once."""
        inputs, parameters = tensors[:4], tensors[4:]
        ctx.save_for_backward(*inputs)
        ctx.weights, ctx.blocks, ctx.places, ctx.parameters = weights, blocks, places, parameters
        ctx.random = torch.get_rng_state(), *get_device_states(*tensors)  # before the blocks draw random numbers
        y = in_turn(weights, blocks, inputs)
        ctx.autocast = autocast_as_now(y.device.type)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of all tensors; random numbers are those of the forward pass."""
        inputs, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        totals = [
            torch.zeros_like(x, memory_format=torch.contiguous_format) if need else None
            for x, need in zip(inputs, needed, strict=False)
        ]
        parameters = [x for x, need in zip(ctx.parameters, needed[len(inputs) :], strict=True) if need]
        sums: list[Tensor | None] = [None] * len(parameters)
        differentiable = [index for index in (0, 1, 3) if needed[index]]  # values: without autograd, below
        cpu_state, devices, device_states = ctx.random
        current_parameters = computing_with(ctx.places)
        with torch.random.fork_rng(devices), ctx.autocast, torch.enable_grad(), current_parameters:
            torch.set_rng_state(cpu_state)
            set_device_states(devices, device_states)
            for block in ctx.blocks:
                block_inputs = [None if x is None else x.detach() for x in parts(inputs, block)]
                sources = [block_inputs[index].requires_grad_() for index in differentiable]  # type: ignore[union-attr]
                weights = ctx.weights(block, block_inputs)
                block_totals, values = parts(totals, block), block_inputs[2]
                assert values is not None
                with torch.no_grad():
                    dy = grad[:, :, block.first : block.last]
                    if block_totals[2] is not None:
                        block_totals[2] += value_gradient(weights, dy, values.shape[1])
                    if not weights.requires_grad:  # e.g. fixed patterns: only values have gradients
                        continue
                    dw = dot_scores(dy, values).sum_to_size(weights.shape).to(weights.dtype)
                grads = torch.autograd.grad(weights, [*sources, *parameters], dw, allow_unused=True)
                with torch.no_grad():
                    for index, grad_part in zip(differentiable, grads, strict=False):
                        if grad_part is not None:
                            block_totals[index] += grad_part  # type: ignore[operator]
                    sums = [_sum(*pair) for pair in zip(sums, grads[len(differentiable) :], strict=True)]
        remaining = iter(sums)
        parameter_grads = [next(remaining) if need else None for need in needed[len(inputs) :]]
        return None, None, None, *totals, *parameter_grads


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return the sum of two gradients; None: 0."""
    if a is None or b is None:
        return a if b is None else b
    return a + b
