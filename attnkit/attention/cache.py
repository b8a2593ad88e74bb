"""The key-value cache: states as values, grown in place where nobody else reads them."""

from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

State: TypeAlias = Any
"""Nested tuples of batch-first tensors, or None; nothing else."""

GROWTH = 64
"""Longer caches of keys and values get room for at least this many more positions at a time."""


class Buffer:
    """Room that the caches of successive states share, as their attribute `buffer`.

    `claimed` counts the positions that belong to some state.  Only the cache that ends there may
    write behind itself; every other one is copied first, so that each state stays what it was.
    """

    def __init__(self, whole: Float[Tensor, "B H room D"]) -> None:
        self.whole, self.claimed = whole, 0

    def cache(self, length: int) -> Float[Tensor, "B H length D"]:
        """The first `length` positions, which nobody else will write from now on."""
        self.claimed = length
        view = self.whole[:, :, :length]  # no result of an operation inherits its attribute
        view.buffer = self  # type: ignore[attr-defined]
        return view


def rows_of(state: State) -> int:
    """The rows of a state that is not None."""
    while not isinstance(state, Tensor):
        state = next(part for part in state if part is not None)
    return state.shape[0]


def reorder(state: State, rows: Int[Tensor, " n"], room: int = 0) -> State:
    """Take `rows` of every tensor in a state: beams that swap, or sentences that leave.

    Caches that `append` made without grad get `room` for further positions, so that it need not
    copy them again.
    """
    if state is None:
        return None
    if isinstance(state, Tensor):
        if not room or not hasattr(state, "buffer"):
            return state.index_select(0, rows)
        heads, length, width = state.shape[1:]
        chosen = Buffer(state.new_empty((len(rows), heads, length + room, width))).cache(length)
        torch.index_select(state, 0, rows, out=chosen)  # straight into the buffer
        return chosen
    parts = [reorder(part, rows, room) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def append(old: Tensor | None, new: Tensor, total: int) -> Tensor:
    """A cache [B, H, total, D]: `old`, and `new` behind it.

    Without grad a long cache is a view of a buffer with room behind it, grown in blocks and written
    in place.  A state that is used again, after another one has claimed that room, is copied, so
    states are values.  `reorder` copies the view and as much room as it is told: a cache that beams
    shuffle at every step stays as small as it can be.
    """
    if old is None:
        return new
    length = old.shape[2]
    recorded = torch.is_grad_enabled() and (old.requires_grad or new.requires_grad)
    buffer: Buffer | None = getattr(old, "buffer", None)
    tip = buffer is not None and buffer.claimed == length and buffer.whole.shape[2] >= total
    if recorded or (not tip and total <= GROWTH):
        both = torch.cat((old, new), 2)
        return both if recorded else Buffer(both).cache(total)  # `reorder` may give it room
    if buffer is None or not tip:
        room = total + max(GROWTH, total // 2)  # by half, so that copies add up to O(T)
        buffer = Buffer(new.new_empty((*old.shape[:2], room, old.shape[3])))
        buffer.whole[:, :, :length] = old
    buffer.whole[:, :, length:total] = new
    return buffer.cache(total)
