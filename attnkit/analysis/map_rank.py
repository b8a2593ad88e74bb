"""Rank of the attention maps of trained runs.

The effective rank of a matrix with singular values s is exp(H(s / sum s)), with the entropy H: n for an orthogonal
matrix, 1 if all rows are proportional (Roy and Vetterli 2007, "The effective rank: a measure of effective
dimensionality", section 2). The numerical rank counts the singular values above a fraction of the largest one. The map
of linear attention with f features has at most rank f.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnkit.analysis.map_stream import Progress, encoded_for, sum_over_rows
from attnkit.analysis.maps import Kind, MapLayer
from attnkit.analysis.recorder import LayerMaps
from attnkit.data.rows import Row
from attnkit.device import pick_device
from attnkit.runs import Run

THRESHOLD = 1e-3
"""Fraction of the largest singular value above which a singular value counts in the numerical rank."""


class Ranks(NamedTuple):
    """Ranks of the maps of one head, or means of several."""

    effective: float
    share: float
    """Effective rank as a fraction of the maximum rank, the smaller of the numbers of queries and keys."""
    numerical: float


class LayerRanks(NamedTuple):
    """Ranks of each head of a layer, averaged over rows."""

    kind: Kind
    layer: MapLayer
    heads: dict[int, Ranks]


def ranks(weights: Float[Tensor, "... T S"]) -> tuple[Float[Tensor, "..."], Int[Tensor, "..."]]:
    """Return effective and numerical rank of matrices, 0 for zeros; rows and columns of zeros have no effect."""
    values = torch.linalg.svdvals(weights.double())
    shares = values / values.sum(-1, keepdim=True).clamp_min(1e-300)  # no 0 / 0 for a matrix of zeros
    nonzero = values[..., 0] > 0
    effective = torch.special.entr(shares).sum(-1).exp() * nonzero
    return effective, (values > THRESHOLD * values[..., :1]).sum(-1)


def probe_rank(
    run: Run,
    rows: Sequence[Row],
    *,
    kinds: Sequence[Kind] | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    device: str = "auto",
    progress: Progress | None = None,
) -> list[LayerRanks]:
    """Return the ranks of the maps of a finished run by layer, averaged over rows.

    Rows are truncated to the model's length as in training. Kinds None, or empty layers or heads, select all of them.

    Raises:
        UsageError: If the model has no attention, or no such kind, layer or head.
        MissingInputError: If there are no rows, or the run is not finished.
    """
    encoded, model = encoded_for(run, rows), run.model(pick_device(device))
    found = sum_over_rows(model, encoded, _sums, kinds=kinds, layers=layers, heads=heads, progress=progress)
    return [
        LayerRanks(
            s.kind,
            s.layer,
            {head: Ranks(*means) for head, means in zip(s.heads, (s.sums.T / len(encoded)).tolist(), strict=True)},
        )
        for s in found
    ]


def _sums(maps: LayerMaps) -> Float[Tensor, "3 H"]:
    """Return the fields of `Ranks` for each head, summed over the rows of a batch."""
    effective, numerical = ranks(maps.weights)  # [B, H]
    queries, keys = (maps.visible.any(axis).sum(-1) for axis in (3, 2))  # [B, 1]
    share = effective / torch.minimum(queries, keys).clamp_min(1)
    return torch.stack([numbers.double().sum(0) for numbers in (effective, share, numerical)])
