"""Layout of banded attention: blocks of queries against overlapping windows of keys."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

MIN_QUERIES = 64
"""Minimum number of queries of a block; in smaller blocks call overhead exceeds the saved work."""


class Band(NamedTuple):
    """Blocks of `step` queries, whose windows have `before` more keys on the left and `after` on the right."""

    step: int
    before: int
    after: int

    @classmethod
    def of(cls, reach: int, length: int, *, causal: bool) -> "Band":
        """Return the layout for distances up to `reach`; blocks are longer for wider windows, to limit overlaps."""
        reach = min(reach, length)
        step = max(MIN_QUERIES, reach // 2 if causal else reach)
        return cls(min(step, length), reach, 0 if causal else reach)

    @property
    def width(self) -> int:
        """Number of keys in a window."""
        return self.before + self.step + self.after

    def blocks(self, length: int) -> int:
        """Return the number of blocks in a row."""
        return -(-length // self.step)

    def distances(self, device: torch.device) -> Tensor:
        """Return query position minus key position [step, width], the same in each block."""
        queries = torch.arange(self.step, device=device)[:, None]
        return queries + self.before - torch.arange(self.width, device=device)

    def allowed(
        self, pattern: Bool[Tensor, "step width"], valid: Tensor | None, rows: int, length: int
    ) -> Bool[Tensor, "blocks 1 step width"]:
        """Return the mask of each window: the pattern, without keys that are padding or beyond the row."""
        if valid is None:
            valid = torch.ones(1, length, dtype=torch.bool, device=pattern.device)
        missing = self.blocks(length) * self.step - length
        unpadded = F.pad(valid, (self.before, missing + self.after)).unfold(1, self.width, self.step)
        allowed = (pattern & unpadded.unsqueeze(2)).expand(rows, -1, -1, -1)  # [B, n, step, width]
        return allowed.flatten(0, 1).unsqueeze(1)

    def cut(self, x: Float[Tensor, "B H T D"]) -> Float[Tensor, "blocks H step D"]:
        """Return the blocks of all rows; the last block of a row is padded with zeros."""
        x = x.transpose(1, 2)
        missing = -x.shape[1] % self.step
        x = F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x
        return x.reshape(-1, self.step, *x.shape[2:]).transpose(1, 2)

    def join(self, x: Float[Tensor, "blocks H step D"], length: int) -> Float[Tensor, "B H T D"]:
        """Invert `cut`."""
        x = x.transpose(1, 2).reshape(-1, self.blocks(length) * self.step, x.shape[1], x.shape[3])
        return x[:, :length].transpose(1, 2)

    def windows(self, x: Float[Tensor, "B H T D"]) -> Float[Tensor, "blocks H width D"]:
        """Return the window of keys of each block, views of one copy; values beyond a row are arbitrary."""
        rows, _, length, _ = x.shape
        flat = self.flat(x, rows, length)
        self.inner(flat, rows, length).copy_(x)
        return self._views(flat, 0, self.width).transpose(1, 2)

    def gather(self, pieces: Float[Tensor, "blocks H width D"], rows: int, length: int) -> Float[Tensor, "B H T D"]:
        """Return the adjoint of `windows`: the sum of all windows' entries for each key."""
        flat = self.flat(pieces, rows, length)
        self.add(flat, 0, pieces)
        return self.inner(flat, rows, length)

    def flat(self, like: Float[Tensor, "n H k D"], rows: int, length: int) -> Tensor:
        """Return zeros for the keys of all rows, end to end, with margins for the first and last window."""
        padded_length = self.blocks(length) * self.step
        size = self.before + rows * padded_length + self.after
        return like.new_zeros(size, like.shape[1], like.shape[3])

    def add(self, flat: Tensor, first: int, pieces: Float[Tensor, "n H width D"]) -> None:
        """Add `pieces`, the windows of the blocks from `first` on, to their keys in `flat`."""
        tail = flat[first * self.step :]
        # windows overlap, but `step` columns of them do not: one addition for all blocks at a time
        for start in range(0, self.width, self.step):
            columns = pieces[:, :, start : start + self.step].transpose(1, 2)
            self._views(tail, start, columns.shape[1])[: len(columns)].add_(columns)

    def _views(self, flat: Tensor, start: int, width: int) -> Tensor:
        """Return columns start .. start + width of every window [blocks, width, H, D], without a copy."""
        count = (flat.shape[0] - self.before - self.after) // self.step
        key, *rest = flat.stride()
        shape = (count, width, *flat.shape[1:])
        strides = (key * self.step, key, *rest)
        return flat.as_strided(shape, strides, flat.storage_offset() + start * key)

    def inner(self, flat: Tensor, rows: int, length: int) -> Tensor:
        """Return the view of the keys [B, H, T, D] in the result of `flat`."""
        padded_length = self.blocks(length) * self.step
        keys = flat[self.before : self.before + rows * padded_length]
        return torch.unflatten(keys, 0, (rows, padded_length))[:, :length].transpose(1, 2)
