"""Checkpointed attention in chunks of queries, each of which transforms the keys of all earlier tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from attnkit.ops.autograd import once_differentiable
from attnkit.ops.recomputed_blocks import RowBlock, autocast_as_now

ChunkAttention = Callable[[RowBlock, Tensor, Sequence[Tensor | None]], tuple[Tensor, Tensor]]
"""Function (chunk, keys before it [B, H, S, D], (values [B, H, S + C, E], bias [b, H, C, S + C], other tensors
[B, H, C, ...])) -> (outputs [B, H, C, E] of the chunk, keys [B, H, S + C, D] for the next chunk)."""


def recomputed(
    attend: ChunkAttention, chunks: Sequence[RowBlock], keys: Tensor, tensors: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Return the outputs of all chunks [B, H, T, E] and the keys after the last one [B, H, S, D].

    Only the keys of each chunk are kept; the rest is recomputed in the backward pass. `attend` must depend on no
    tensors with gradients other than its arguments. `tensors` is values, bias and other tensors; `cut` slices it.
    """
    if not torch.is_grad_enabled():
        return in_turn(attend, chunks, keys, tensors)
    result: tuple[Tensor, Tensor] = RecomputedChunks.apply(attend, chunks, keys, *tensors)  # type: ignore[no-untyped-call]
    return result


def in_turn(
    attend: ChunkAttention, chunks: Sequence[RowBlock], keys: Tensor, tensors: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Return `recomputed` by plain autograd, which keeps all intermediate tensors."""
    outputs = list[Tensor]()
    for chunk in chunks:
        y, keys = attend(chunk, keys, cut(chunk, tensors))
        outputs.append(y)
    return torch.cat(outputs, 2), keys


def cut(chunk: RowBlock, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return views of the values, bias and other tensors that a chunk reads, in this order."""
    queries, seen = slice(chunk.first, chunk.last), slice(chunk.seen)
    values, bias, *rows = tensors
    return [
        None if values is None else values[:, :, seen],
        None if bias is None else bias[:, :, queries, seen],
        *(None if x is None else x[:, :, queries] for x in rows),
    ]


class RecomputedChunks(torch.autograd.Function):
    """`torch.utils.checkpoint` for each chunk, with the gradients of slices accumulated in place.

    Otherwise the gradient of each slice would be as large as the whole tensor. For 2,048 tokens (8 heads of width 64)
    `path` takes about 240 MB, less than half as much as with torch's checkpoint.
    """

    @staticmethod
    def forward(
        ctx: Any, attend: ChunkAttention, chunks: Sequence[RowBlock], keys: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        # what is kept is allocated first: the memory of a chunk can then be reused by the next ones
        sizes = [keys.shape[2], *(chunk.seen for chunk in chunks)]
        kept = keys.new_empty(*keys.shape[:2], sum(sizes), keys.shape[3])
        before, random, y = torch.split(kept, sizes, 2), list[Any](), None
        before[0].copy_(keys)
        for chunk, old_keys, kept_keys in zip(chunks, before[:-1], before[1:], strict=True):
            random.append((torch.get_rng_state(), *get_device_states(keys)))
            output, new_keys = attend(chunk, old_keys, cut(chunk, tensors))
            kept_keys.copy_(new_keys)
            if y is None:
                y = output.new_empty(*output.shape[:2], chunks[-1].last, output.shape[3])
            y[:, :, chunk.first : chunk.last] = output
        ctx.save_for_backward(*tensors, kept)
        ctx.attend, ctx.chunks, ctx.sizes, ctx.random = attend, chunks, sizes, random
        ctx.autocast = autocast_as_now(keys.device.type)
        assert y is not None, "there is a chunk"
        return y, before[-1].clone()  # a view would keep the keys of all chunks in memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, dkeys: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, chunk by chunk from the last; random numbers are those of the forward pass."""
        *tensors, kept = ctx.saved_tensors
        before = torch.split(kept, ctx.sizes, 2)[:-1]
        needed = ctx.needs_input_grad[3:]
        totals = [
            torch.zeros_like(x, memory_format=torch.contiguous_format) if need else None
            for x, need in zip(tensors, needed, strict=True)
        ]
        with torch.random.fork_rng(ctx.random[0][1]), ctx.autocast, torch.enable_grad():
            for chunk, keys, (cpu, devices, states) in zip(
                reversed(ctx.chunks), reversed(before), reversed(ctx.random), strict=True
            ):
                torch.set_rng_state(cpu)
                set_device_states(devices, states)
                keys = keys.detach().requires_grad_()  # its gradient is passed to the chunk before
                inputs = [None if x is None else x.detach() for x in cut(chunk, tensors)]
                pairs = zip(inputs, cut(chunk, totals), strict=True)
                leaves = [(x.requires_grad_(), total) for x, total in pairs if total is not None]  # type: ignore[union-attr]
                outputs = ctx.attend(chunk, keys, inputs)
                dy = grad[:, :, chunk.first : chunk.last]
                sources = [keys, *(x for x, _ in leaves)]
                dkeys, *grads = torch.autograd.grad(outputs, sources, (dy, dkeys))
                with torch.no_grad():
                    for (_, total), part in zip(leaves, grads, strict=True):
                        total += part
        return None, None, dkeys if ctx.needs_input_grad[2] else None, *totals
