"""Attention masks that store positions instead of a matrix."""

from collections.abc import Callable
from typing import Literal, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def readable(x: Tensor) -> bool:
    """Return whether values can be read without waiting for a device or breaking a compiled graph."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


class Mask(NamedTuple):
    """Which keys each query may attend to, as positions instead of a matrix.

    Positions count the tokens of a row from 0. `valid` is False for padding. `layout` is a promise by the caller that
    saves a check on the device: "any" promises nothing, "right" that positions are column indices (padding only at the
    end of a row), "packed" also that padding hides no key.
    """

    q_pos: Int[Tensor, "b T"]
    k_pos: Int[Tensor, "b S"]
    valid: Bool[Tensor, "b S"]
    causal: bool
    layout: Literal["any", "right", "packed"] = "any"
    first: int | None = None
    """Column of the first query; None: the queries are the last columns."""

    @classmethod
    def of(cls, valid: Bool[Tensor, "B S"], queries: int, causal: bool, start: int = 0) -> Self:
        """Return the mask of self-attention of `queries` tokens, the first of which is column `start` of the keys.

        `valid` covers all keys, including cached keys; rows may have padding anywhere. Raises ValueError unless the
        queries lie among the keys.
        """
        if start < 0 or start + queries > valid.shape[1]:
            raise ValueError(f"queries {start}..{start + queries - 1} must lie among {valid.shape[1]} keys")
        k_pos = (valid.long().cumsum(1) - 1).masked_fill(~valid, 0)  # [B, S]
        return cls(k_pos[:, start : start + queries], k_pos, valid, causal)

    @classmethod
    def packed(cls, length: int, device: torch.device, *, causal: bool, start: int = 0) -> Self:
        """Return the mask of self-attention over `length` columns, none of which is hidden by padding.

        It is also right for causal self-attention of right-padded rows, as no real query comes after padding. Outputs
        of padding queries are then unspecified, but finite.
        """
        k_pos = torch.arange(length, device=device)[None]  # [1, S], shared by all rows
        valid = torch.ones_like(k_pos, dtype=torch.bool)
        return cls(k_pos[:, start:], k_pos, valid, causal, "packed")

    @classmethod
    def right(cls, valid: Bool[Tensor, "B S"]) -> Self:
        """Return the mask of bidirectional self-attention over whole right-padded rows."""
        k_pos = torch.arange(valid.shape[1], device=valid.device)[None]
        return cls(k_pos, k_pos, valid, False, "right")

    @classmethod
    def cross(cls, valid: Bool[Tensor, "B S"], queries: int) -> Self:
        """Return the mask of cross attention from `queries` tokens to the keys of another sequence; never causal.

        Queries have no position among the keys: `q_pos` is 0 for all of them, so a mechanism that compares positions
        declares `cross = False`.
        """
        k_pos = torch.arange(valid.shape[1], device=valid.device)[None]
        q_pos = k_pos.new_zeros((1, 1)).expand(1, queries)  # [1, T]
        return cls(q_pos, k_pos, valid, False)

    @property
    def start(self) -> int:
        """Column of the first query."""
        return self.k_pos.shape[1] - self.q_pos.shape[1] if self.first is None else self.first

    def part(self, first: int, last: int, keys: int) -> Self:
        """Return the mask of queries `first` to `last` - 1 over the first `keys` keys."""
        return self._replace(
            q_pos=self.q_pos[:, first:last],
            k_pos=self.k_pos[:, :keys],
            valid=self.valid[:, :keys],
            first=self.start + first,
        )

    def of_rows(self, rows: slice) -> Self:
        """Return the mask of a slice of the batch."""
        q_pos, k_pos, valid = (x if len(x) == 1 else x[rows] for x in (self.q_pos, self.k_pos, self.valid))
        return self._replace(q_pos=q_pos, k_pos=k_pos, valid=valid)

    def visible(self) -> Int[Tensor, "b 1 T"]:
        """Return the number of keys that each query may attend to."""
        if self.layout == "packed":
            whole = torch.full_like(self.q_pos, self.k_pos.shape[1])
            return (self.q_pos + 1 if self.causal else whole)[:, None]
        return self.dense().sum(-1)

    def dense(self) -> Bool[Tensor, "b 1 T S"]:
        """Return the boolean matrix, True for each key that a query may attend to."""
        visible = self.valid[:, None, None, :]
        if self.causal:
            earlier = self.k_pos[:, None, None, :] <= self.q_pos[:, None, :, None]
            return earlier if self.layout == "packed" else visible & earlier  # no padding to hide
        return visible.expand(-1, -1, self.q_pos.shape[1], -1)


def unpadded(mask: Mask) -> bool:
    """Return whether it is known that no key is padding."""
    return mask.layout == "packed" or (readable(mask.valid) and bool(mask.valid.all()))


def pads_last(mask: Mask) -> Int[Tensor, "b S"] | None:
    """Return the column order with padding last, so that columns are positions; None if it is known to be so."""
    if mask.layout != "any":
        return None
    if readable(mask.valid) and not (mask.valid[:, 1:] & ~mask.valid[:, :-1]).any():
        return None
    return mask.valid.int().argsort(dim=1, descending=True, stable=True)


def with_pads_last(answer: Callable[..., Tensor], mask: Mask, *parts: Tensor) -> Tensor:
    """Call `answer(valid, *parts)` with padding moved behind the tokens of each row, and restore the order.

    `parts` and the result are [B, H, S, *]; `valid` [b, S] is False for padding.
    """
    order = pads_last(mask)
    if order is None:
        return answer(mask.valid, *parts)
    reordered = (gather_columns(x, order) for x in parts)
    inverse = order.argsort(1)
    return gather_columns(answer(mask.valid.gather(1, order), *reordered), inverse)


def gather_columns(x: Float[Tensor, "B H S D"], columns: Int[Tensor, "b S"]) -> Float[Tensor, "B H S D"]:
    """Reorder the columns of each row by its own indices."""
    return x.gather(2, columns[:, None, :, None].expand(*x.shape[:2], -1, x.shape[3]))
