"""The rank of the attention maps of trained runs.

The effective rank of a matrix with singular values s is exp(H(s / sum s)), H the entropy: n for an
orthogonal matrix, 1 where all rows are alike (Roy and Vetterli 2007, "The effective rank: a measure
of effective dimensionality", section 2).  The numerical rank counts the singular values above a
share of the largest one.  The map of linear attention with f features has rank f at most.
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
"""Share of the largest singular value that counts in the numerical rank."""


class Ranks(NamedTuple):
    """Ranks of the maps of one head, or means of several."""

    effective: float
    share: float
    """Of the largest possible rank, the smaller of queries and keys."""
    numerical: float


class LayerRanks(NamedTuple):
    """The ranks of each head of a layer, averaged over the rows that were read."""

    kind: Kind
    layer: MapLayer
    heads: dict[int, Ranks]


def ranks(weights: Float[Tensor, "... T S"]) -> tuple[Float[Tensor, "..."], Int[Tensor, "..."]]:
    """Effective and numerical rank of matrices; rows and columns of zeros change neither.

    Both are 0 for a matrix of zeros.
    """
    values = torch.linalg.svdvals(weights.double())
    shares = values / values.sum(-1, keepdim=True).clamp_min(1e-300)
    some = values[..., 0] > 0
    effective = torch.special.entr(shares).sum(-1).exp() * some
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
    """Ranks of the maps of a run by layer, averaged over rows.

    Args:
        run: a finished one.
        rows: given sources and targets, cut to the model's length as in training.
        kinds, layers, heads: which maps; all when None or empty.
        device: auto takes a GPU where there is one.
        progress: called with the rows read, and all rows.

    Raises:
        UsageError: no such kind, layer or head; no attention.
        MissingInputError: no rows; the run is not finished.
    """
    encoded, model = encoded_for(run, rows), run.model(pick_device(device))
    found = sum_over_rows(model, encoded, _sums, kinds=kinds, layers=layers, heads=heads, progress=progress)
    return [
        LayerRanks(
            one.kind,
            one.layer,
            {head: Ranks(*means) for head, means in zip(one.heads, (one.sums.T / len(encoded)).tolist(), strict=True)},
        )
        for one in found
    ]


def _sums(maps: LayerMaps) -> Float[Tensor, "3 H"]:
    """The fields of `Ranks` of each head, summed over the rows of a batch."""
    effective, numerical = ranks(maps.weights)  # [B, H]
    queries, keys = (maps.visible.any(axis).sum(-1) for axis in (3, 2))  # [B, 1]
    share = effective / torch.minimum(queries, keys).clamp_min(1)
    return torch.stack([numbers.double().sum(0) for numbers in (effective, share, numerical)])
