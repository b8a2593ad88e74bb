"""The key-value cache: states are values, grown in place if no other state reads the buffer."""

from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

State: TypeAlias = Any
"""Nested tuples of batch-first tensors, or None; nothing else."""

GROWTH = 64
"""Minimum number of positions by which a buffer grows; a cache up to this length is concatenated instead."""


class Buffer:
    """Storage that the caches of successive states share, as their attribute `buffer`.

    `claimed` is the number of positions that belong to some state. Only the cache that ends there may write after
    its end; any other cache is copied first, so that no state changes.
    """

    def __init__(self, whole: Float[Tensor, "B H room D"]) -> None:
        self.whole, self.claimed = whole, 0

    def cache(self, length: int) -> Float[Tensor, "B H length D"]:
        """Return a view of the first `length` positions, and claim them so that no other cache writes to them."""
        self.claimed = length
        view = self.whole[:, :, :length]  # results of operations on it do not inherit its attribute
        view.buffer = self  # type: ignore[attr-defined]
        return view


def batch_size(state: State) -> int:
    """Return the batch size of a state that is not None."""
    while not isinstance(state, Tensor):
        state = next(part for part in state if part is not None)
    return state.shape[0]


def reorder(state: State, rows: Int[Tensor, " n"], room: int = 0) -> State:
    """Select `rows` of every tensor in a state, to reorder beams or to drop finished rows.

    Caches that `append` created without gradients get `room` for further positions, so that they are not copied again.
    """
    if state is None:
        return None
    if isinstance(state, Tensor):
        if not room or not hasattr(state, "buffer"):
            return state.index_select(0, rows)
        heads, length, width = state.shape[1:]
        selected = Buffer(state.new_empty((len(rows), heads, length + room, width))).cache(length)
        torch.index_select(state, 0, rows, out=selected)  # straight into the buffer
        return selected
    parts = [reorder(part, rows, room) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def append(old: Tensor | None, new: Tensor, total: int) -> Tensor:
    """Return the cache [B, H, total, D] of `old` followed by `new`.

    Without gradients a long cache is a view of a buffer with room behind it, which grows in blocks and is written in
    place. If a state is used again after another state has claimed that room, it is copied, so states are values.
    `reorder` copies the view and only the `room` given to it, so a cache that is reordered at every step of a beam
    search stays as small as possible.
    """
    if old is None:
        return new
    length = old.shape[2]
    needs_grad = torch.is_grad_enabled() and (old.requires_grad or new.requires_grad)
    buffer: Buffer | None = getattr(old, "buffer", None)
    writable = buffer is not None and buffer.claimed == length and buffer.whole.shape[2] >= total
    if needs_grad or (not writable and total <= GROWTH):
        joined = torch.cat((old, new), 2)
        return joined if needs_grad else Buffer(joined).cache(total)  # `reorder` may add room
    if buffer is None or not writable:
        room = total + max(GROWTH, total // 2)  # grows by half, so that all copies together are O(T)
        buffer = Buffer(new.new_empty((*old.shape[:2], room, old.shape[3])))
        buffer.whole[:, :, :length] = old
    buffer.whole[:, :, length:total] = new
    return buffer.cache(total)
