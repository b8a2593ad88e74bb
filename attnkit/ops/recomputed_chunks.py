"""Attention in chunks of queries, each of which carries all earlier keys on to the next."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from attnkit.ops.autograd import once_differentiable
from attnkit.ops.recomputed_blocks import RowBlock, autocast_as_now

Answers = Callable[[RowBlock, Tensor, Sequence[Tensor | None]], tuple[Tensor, Tensor]]
"""Answers [B, H, C, E] of a chunk, and keys [B, H, S + C, D] for the next one: from the keys before
it [B, H, S, D] and what it reads of values [B, H, S + C, E], of a bias [b, H, C, S + C], and of
other tensors [B, H, C, ...]."""


def recomputed(
    answers: Answers, chunks: Sequence[RowBlock], keys: Tensor, given: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """The answers of all chunks, [B, H, T, E], and the keys after the last one, [B, H, S, D].

    `given` is cut by `cut`.  Of what a chunk forms only the keys are kept; the rest is made again
    for gradients.  `answers` must not read other tensors with gradients than it is given.
    """
    if not torch.is_grad_enabled():
        return in_turn(answers, chunks, keys, given)
    found: tuple[Tensor, Tensor] = RecomputedChunks.apply(answers, chunks, keys, *given)  # type: ignore[no-untyped-call]
    return found


def in_turn(
    answers: Answers, chunks: Sequence[RowBlock], keys: Tensor, given: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """`recomputed` by plain autograd, which keeps all that the chunks form."""
    parts = list[Tensor]()
    for chunk in chunks:
        y, keys = answers(chunk, keys, cut(chunk, given))
        parts.append(y)
    return torch.cat(parts, 2), keys


def cut(chunk: RowBlock, given: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Views of what a chunk reads of values, a bias and other tensors, in this order."""
    own, seen = slice(chunk.first, chunk.last), slice(chunk.seen)
    values, bias, *rows = given
    return [
        None if values is None else values[:, :, seen],
        None if bias is None else bias[:, :, own, seen],
        *(None if x is None else x[:, :, own] for x in rows),
    ]


class RecomputedChunks(torch.autograd.Function):
    """`torch.utils.checkpoint` for each chunk, with gradients of slices that are summed in place.

    Each would else be as large as the whole.  For a text of 2,048 tokens (8 heads of width 64)
    path holds about 240 MB, less than half as much as with torch's checkpoint.
    """

    @staticmethod
    def forward(
        ctx: Any, answers: Answers, chunks: Sequence[RowBlock], keys: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """`tensors` are what `recomputed` is given."""
        # all that stays is allocated first, so that each chunk's memory fits where others were
        sizes = [keys.shape[2], *(chunk.seen for chunk in chunks)]
        kept = keys.new_empty(*keys.shape[:2], sum(sizes), keys.shape[3])
        before, random, y = torch.split(kept, sizes, 2), list[Any](), None
        before[0].copy_(keys)
        for chunk, old, new in zip(chunks, before[:-1], before[1:], strict=True):
            random.append((torch.get_rng_state(), *get_device_states(keys)))
            own, found = answers(chunk, old, cut(chunk, tensors))
            new.copy_(found)
            if y is None:
                y = own.new_empty(*own.shape[:2], chunks[-1].last, own.shape[3])
            y[:, :, chunk.first : chunk.last] = own
        ctx.save_for_backward(*tensors, kept)
        ctx.answers, ctx.chunks, ctx.sizes, ctx.random = answers, chunks, sizes, random
        ctx.autocast = autocast_as_now(keys.device.type)
        assert y is not None, "there is a chunk"
        return y, before[-1].clone()  # a view would keep the keys of all chunks alive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, dkeys: Tensor) -> tuple[Tensor | None, ...]:
        """From the last chunk to the first; each draws the noise that it drew before."""
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
                keys = keys.detach().requires_grad_()  # its gradient goes on to the chunk before
                read = [None if x is None else x.detach() for x in cut(chunk, tensors)]
                pairs = zip(read, cut(chunk, totals), strict=True)
                wanted = [(x.requires_grad_(), into) for x, into in pairs if into is not None]  # type: ignore[union-attr]
                made = ctx.answers(chunk, keys, read)
                own = grad[:, :, chunk.first : chunk.last]
                sources = [keys, *(x for x, _ in wanted)]
                dkeys, *found = torch.autograd.grad(made, sources, (own, dkeys))
                with torch.no_grad():
                    for (_, into), one in zip(wanted, found, strict=True):
                        into += one
        return None, None, dkeys if ctx.needs_input_grad[2] else None, *totals
