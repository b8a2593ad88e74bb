"""Attention in blocks of queries, whose weights are not kept, but made again for gradients."""

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
    """Queries `first` to `last`, and the `seen` first keys that they may see."""

    first: int
    last: int
    seen: int


Weights = Callable[[RowBlock, Sequence[Tensor | None]], Tensor]
"""Weights [b, H, t, s] of a block, from what it reads of q [B, H, T, D], keys [B, G, S, M], values
[B, G, S, E] and a bias [b, h, T or 1, S]; values only give the shape."""


def parts(given: Sequence[Tensor | None], block: RowBlock) -> list[Tensor | None]:
    """Views of what a block reads of q, keys, values and the bias."""
    q, keys, values, bias = given
    own, seen = slice(block.first, block.last), slice(block.seen)
    rows = own if bias is not None and bias.shape[2] > 1 else slice(1)
    return [
        None if q is None else q[:, :, own],
        None if keys is None else keys[:, :, seen],
        None if values is None else values[:, :, seen],
        None if bias is None else bias[:, :, rows, seen],
    ]


def recomputed(
    weights: Weights, blocks: Sequence[RowBlock], given: Sequence[Tensor | None], module: nn.Module
) -> Tensor:
    """The answers of all blocks, [B, H, T, E]; what they form is made again for gradients.

    `given` is cut by `parts`; beside it `weights` reads parameters of `module`, and nothing else
    with gradients.  They are made again with the parameters that it has now, such as 16-bit copies.
    Blocks that need most memory come first: later ones fit into what they have freed.
    """
    if not torch.is_grad_enabled():
        return in_turn(weights, blocks, given)
    own, parameters = parameters_of(module), tuple(module.parameters())
    y: Tensor = RecomputedBlocks.apply(weights, blocks, own, *given, *parameters)  # type: ignore[no-untyped-call]
    return y


def in_turn(weights: Weights, blocks: Sequence[RowBlock], given: Sequence[Tensor | None]) -> Tensor:
    """The answers of all blocks, [B, H, T, E]."""
    y = None
    for block in blocks:
        read = parts(given, block)
        assert read[2] is not None
        found = mix(weights(block, read), read[2])
        if y is None:
            length = max(one.last for one in blocks)  # the last block may come first
            y = found.new_empty(*found.shape[:2], length, found.shape[3])
        y[:, :, block.first : block.last] = found
    assert y is not None, "there is a block"
    return y


def autocast_as_now(device: str) -> AbstractContextManager[Any]:
    """Autocast as it is set now, for the backward pass, which runs outside of it."""
    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    on = torch.is_autocast_enabled(device)
    return torch.autocast(device, torch.get_autocast_dtype(device), enabled=on)


class RecomputedBlocks(torch.autograd.Function):
    """`torch.utils.checkpoint` for each block, with gradients that are summed in place.

    The gradients of slices would each be as large as the whole, and lie between the scores of
    blocks in memory, whose places no later block fits: a process held 2 to 4 times as much.
    """

    @staticmethod
    def forward(
        ctx: Any, weights: Weights, blocks: Sequence[RowBlock], own: Sequence[Place], *tensors: Tensor | None
    ) -> Tensor:
        """[B, H, T, E]; `tensors` are the four that `parts` cuts, then of `own`, each once."""
        given, parameters = tensors[:4], tensors[4:]
        ctx.save_for_backward(*given)
        ctx.weights, ctx.blocks, ctx.own, ctx.parameters = weights, blocks, own, parameters
        ctx.random = torch.get_rng_state(), *get_device_states(*tensors)  # before blocks draw noise
        y = in_turn(weights, blocks, given)
        ctx.autocast = autocast_as_now(y.device.type)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of all tensors; the blocks draw the noise that they drew before."""
        given, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        totals = [
            torch.zeros_like(x, memory_format=torch.contiguous_format) if need else None
            for x, need in zip(given, needed, strict=False)
        ]
        own = [x for x, need in zip(ctx.parameters, needed[len(given) :], strict=True) if need]
        sums: list[Tensor | None] = [None] * len(own)
        places = [place for place in (0, 1, 3) if needed[place]]  # of values: computed below
        cpu, devices, states = ctx.random
        again = computing_with(ctx.own)
        with torch.random.fork_rng(devices), ctx.autocast, torch.enable_grad(), again:
            torch.set_rng_state(cpu)
            set_device_states(devices, states)
            for block in ctx.blocks:
                read = [None if x is None else x.detach() for x in parts(given, block)]
                sources = [read[place].requires_grad_() for place in places]  # type: ignore[union-attr]
                weights = ctx.weights(block, read)
                into, values = parts(totals, block), read[2]
                assert values is not None
                with torch.no_grad():
                    dy = grad[:, :, block.first : block.last]
                    if into[2] is not None:
                        into[2] += value_gradient(weights, dy, values.shape[1])
                    if not weights.requires_grad:  # e.g. fixed patterns: only values do
                        continue
                    dw = dot_scores(dy, values).sum_to_size(weights.shape).to(weights.dtype)
                found = torch.autograd.grad(weights, [*sources, *own], dw, allow_unused=True)
                with torch.no_grad():
                    for place, one in zip(places, found, strict=False):
                        if one is not None:
                            into[place] += one  # type: ignore[operator]
                    sums = [_sum(*both) for both in zip(sums, found[len(places) :], strict=True)]
        rest = iter(sums)
        more = [next(rest) if need else None for need in needed[len(given) :]]
        return None, None, None, *totals, *more


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Of two gradients, of which None is 0."""
    if one is None or other is None:
        return one if other is None else other
    return one + other
