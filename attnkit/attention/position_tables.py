"""Scores tied to positions: slices of tables if columns are positions, gathers otherwise.

For mechanisms whose weights are made for N positions: the key at position j has column j, whatever the padding, and
the query at position i has row i, whatever is cached.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnkit.attention.base import Shape
from attnkit.attention.mask import Mask, readable
from attnkit.attention.scored import Scored


class PositionScored(Scored):
    """Base class of mechanisms whose scores are made for the N positions of one sequence."""

    cross = False
    limit: int | str | None = "max_length"
    positions = ("alibi", "relative")
    why = "its scores have one column for each position of one sequence"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.limit = shape.max_length


def aligned(mask: Mask, limit: int) -> bool:
    """Return whether columns are positions (except for padding) for keys and queries, all below `limit`.

    If `layout` is "any", positions are read, but only if that does not wait for a device. False selects the general
    path, which is right for any positions.
    """
    k_pos = mask.k_pos
    keys, queries = k_pos.shape[1], mask.q_pos.shape[1]
    if mask.layout != "any":
        return True
    if keys > limit or not readable(k_pos):
        return False
    columns = torch.arange(keys)  # readable positions are on a CPU
    hidden = ~mask.valid
    keys_in_place = (k_pos == columns) | hidden
    query_columns = slice(mask.start, mask.start + queries)
    queries_in_place = (mask.q_pos == columns[query_columns]) | hidden[:, query_columns]
    return bool(keys_in_place.all() and queries_in_place.all())


def check_length(mask: Mask, limit: int, word: str) -> None:
    """Raise ValueError if the sequence is longer than `limit` positions."""
    length = mask.k_pos.shape[1]
    if length > limit and mask.layout == "any":
        length = int(mask.k_pos.max()) + 1  # padding has columns, but no positions
    if length > limit:
        raise ValueError(
            f"{word}: a sequence of {length} tokens is longer than its table of {limit} positions;"
            " shorten the text or raise data.max_length and train again"
        )


def position_count(mask: Mask, limit: int) -> int:
    """Return an upper bound of the positions in a mask: its number of columns, at most `limit`.

    An exported graph must allow any length: there it is `limit`.
    """
    return limit if torch.compiler.is_exporting() else min(mask.k_pos.shape[1], limit)


def entries(table: Float[Tensor, "H N N"], mask: Mask) -> Float[Tensor, "b H T S"]:
    """Return the entries of a table at the positions of queries and keys."""
    if aligned(mask, table.shape[1]):
        keys, queries = mask.k_pos.shape[1], mask.q_pos.shape[1]
        return table[None, :, mask.start : mask.start + queries, :keys]  # [1, H, T, S], a view
    count = position_count(mask, table.shape[1])
    index = mask.q_pos[:, :, None] * count + mask.k_pos[:, None, :]  # [b, T, S], into a flat table
    return rows_at(table[:, :count, :count].flatten(1), index).transpose(0, 1)  # [b, H, T, S]


def rows_at(table: Float[Tensor, "H N ..."], positions: Int[Tensor, "b ..."]) -> Tensor:
    """Return the entries [H, b, ...] at the positions, by `index_select` for its fast backward pass."""
    return torch.unflatten(table.index_select(1, positions.flatten()), 1, positions.shape)


def columns_at(scores: Float[Tensor, "B H T N"], mask: Mask) -> Float[Tensor, "B H T S"]:
    """Return the columns of the scores at the positions of the keys."""
    if aligned(mask, scores.shape[-1]):
        return scores[..., : mask.k_pos.shape[1]]
    index = mask.k_pos[:, None, None, :].expand(*scores.shape[:3], -1)
    return scores.gather(-1, index)


def per_head(
    x: Float[Tensor, "B H T D"], weight: Float[Tensor, "H D M"], bias: Float[Tensor, "H M"] | None
) -> Float[Tensor, "B H T M"]:
    """Compute x W + b with one matrix per head, without copying it for each row of the batch."""
    rows = x.transpose(0, 1).flatten(1, 2)  # [H, B T, D]
    y = torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias[:, None], rows, weight)
    return torch.unflatten(y, 1, (x.shape[0], x.shape[2])).transpose(0, 1)  # [B, H, T, M]


class SliceLayer(nn.Module):
    """First layer of a Dense Synthesizer that reads slices of the input: x W1 + b1 in every head."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(xavier(heads, width, width))
        self.bias = nn.Parameter(torch.zeros(heads, width))

    def forward(self, x: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T D"]:
        return per_head(x, self.weight, self.bias)


def first_layer(reads: Literal["layer", "slice"], heads: int, width: int) -> nn.Module:
    """Return the first layer of a Dense Synthesizer: identity if `layer.q` takes its place, otherwise `SliceLayer`."""
    return nn.Identity() if reads == "layer" else SliceLayer(heads, width)


def xavier(heads: int, inner: int, outer: int) -> Float[Tensor, "H D M"]:
    """Return one weight matrix per head with Xavier uniform initialization (Glorot and Bengio 2010, equation 16)."""
    bound = (6 / (inner + outer)) ** 0.5
    return torch.empty(heads, inner, outer).uniform_(-bound, bound)
