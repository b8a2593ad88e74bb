"""Blocks of queries against overlapping windows of keys: how bands of distances are laid out."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

SMALLEST = 64
"""Queries of a block, at least: shorter ones cost more in calls than they save in work."""


class Band(NamedTuple):
    """Blocks of `step` queries, with `before` more keys on the left and `after` on the right."""

    step: int
    before: int
    after: int

    @classmethod
    def of(cls, reach: int, length: int, *, causal: bool) -> "Band":
        """Blocks for distances up to `reach`; longer for wider windows, so overlaps stay few."""
        reach = min(reach, length)
        wide = max(SMALLEST, reach // 2 if causal else reach)
        return cls(min(wide, length), reach, 0 if causal else reach)

    @property
    def width(self) -> int:
        """Keys that a block of queries sees."""
        return self.before + self.step + self.after

    def blocks(self, length: int) -> int:
        """Blocks in a row."""
        return -(-length // self.step)

    def distances(self, device: torch.device) -> Tensor:
        """Query minus key [step, width] in any block."""
        queries = torch.arange(self.step, device=device)[:, None]
        return queries + self.before - torch.arange(self.width, device=device)

    def allowed(
        self, pattern: Bool[Tensor, "step width"], valid: Tensor | None, rows: int, length: int
    ) -> Bool[Tensor, "blocks 1 step width"]:
        """Who sees whom: a pattern of distances among the keys that exist."""
        if valid is None:
            valid = torch.ones(1, length, dtype=torch.bool, device=pattern.device)
        spare = self.blocks(length) * self.step - length
        real = F.pad(valid, (self.before, spare + self.after)).unfold(1, self.width, self.step)
        shared = (pattern & real.unsqueeze(2)).expand(rows, -1, -1, -1)  # [B, n, step, width]
        return shared.flatten(0, 1).unsqueeze(1)

    def cut(self, x: Float[Tensor, "B H T D"]) -> Float[Tensor, "blocks H step D"]:
        """The blocks of all rows, one behind the other; the last one of a row padded with zeros."""
        x = x.transpose(1, 2)
        spare = -x.shape[1] % self.step
        x = F.pad(x, (0, 0, 0, 0, 0, spare)) if spare else x
        return x.reshape(-1, self.step, *x.shape[2:]).transpose(1, 2)

    def join(self, x: Float[Tensor, "blocks H step D"], length: int) -> Float[Tensor, "B H T D"]:
        """The inverse of `cut`."""
        x = x.transpose(1, 2).reshape(-1, self.blocks(length) * self.step, x.shape[1], x.shape[3])
        return x[:, :length].transpose(1, 2)

    def windows(self, x: Float[Tensor, "B H T D"]) -> Float[Tensor, "blocks H width D"]:
        """The keys that each block sees: views of one copy; what lies beyond a row is junk."""
        rows, _, length, _ = x.shape
        flat = self.flat(x, rows, length)
        self.inner(flat, rows, length).copy_(x)
        return self._views(flat, 0, self.width).transpose(1, 2)

    def gather(self, pieces: Float[Tensor, "blocks H width D"], rows: int, length: int) -> Float[Tensor, "B H T D"]:
        """The adjoint of `windows`: what the windows hold of each key, added up."""
        flat = self.flat(pieces, rows, length)
        self.add(flat, 0, pieces)
        return self.inner(flat, rows, length)

    def flat(self, like: Float[Tensor, "n H k D"], rows: int, length: int) -> Tensor:
        """Zeros for all keys of all rows, and what the first and last windows need beyond them."""
        whole = self.blocks(length) * self.step
        size = self.before + rows * whole + self.after  # the rows end to end
        return like.new_zeros(size, like.shape[1], like.shape[3])

    def add(self, flat: Tensor, first: int, pieces: Float[Tensor, "n H width D"]) -> None:
        """Add the windows of the blocks from `first` on to their keys."""
        some = flat[first * self.step :]
        # windows overlap, but not their columns start .. start + step: one add for all blocks
        for start in range(0, self.width, self.step):
            part = pieces[:, :, start : start + self.step].transpose(1, 2)
            self._views(some, start, part.shape[1])[: len(part)].add_(part)

    def _views(self, flat: Tensor, start: int, width: int) -> Tensor:
        """Columns start .. start + width of every window [blocks, width, H, D]."""
        count = (flat.shape[0] - self.before - self.after) // self.step
        key, *inner = flat.stride()
        shape = (count, width, *flat.shape[1:])
        strides = (key * self.step, key, *inner)
        return flat.as_strided(shape, strides, flat.storage_offset() + start * key)

    def inner(self, flat: Tensor, rows: int, length: int) -> Tensor:
        """The keys themselves in what `windows` allocates [B, H, T, D]."""
        whole = self.blocks(length) * self.step
        inner = flat[self.before : self.before + rows * whole]
        return torch.unflatten(inner, 0, (rows, whole))[:, :length].transpose(1, 2)
