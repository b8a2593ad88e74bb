"""Entropy of attention maps, and the gradient that their softmax lets through, by head.

With p = softmax(s), the derivative of the weights with respect to the scores has the half L1 norm |dp/ds|_1 / 2 = 1 -
sum p^2: 0 if all weight is on one key, so that the scores cannot learn. The entropy of the weights bounds what an
update can take from them. Source: Su 2023, "Why does attention usually use softmax?" (spaces.ac.cn/archives/9593).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnkit.analysis.map_statistics import SLACK
from attnkit.analysis.map_stream import encoded_for, sum_over_rows
from attnkit.analysis.maps import Kind, MapLayer
from attnkit.data.rows import Row
from attnkit.device import pick_device
from attnkit.models.base import Model
from attnkit.runs import Run
from attnkit.train import checkpoint


class Spread(NamedTuple):
    """Means over queries; None if undefined."""

    entropy: float | None
    """Entropy in bits; None if rows are not distributions."""
    share: float | None
    """Fraction of the maximum entropy, log2 of the number of visible keys; over queries that see at least two."""
    gradient: float | None
    """|dp/ds|_1 / 2; None if the map is not a softmax of scores."""


class Stage(NamedTuple):
    """Weights of a run at one point of its training."""

    step: int
    """Number of updates so far."""
    name: str
    """start, step N, or end (selected weights)."""


@dataclass(frozen=True)
class HeadEntropy:
    """Entropy of one head at one stage."""

    stage: Stage
    kind: Kind
    layer: MapLayer
    head: int
    spread: Spread


def spread_sums(weights: Float[Tensor, "B H T S"], visible: Bool[Tensor, "B 1 T S"]) -> Float[Tensor, "6 H"]:
    """Return sums over queries: entropy (bits), its fraction of the maximum, and the gradient.

    They are followed by the numbers of queries that see a key, of queries that see two or more, and of rows that are
    not distributions.
    """
    seen = visible.sum(-1)  # [B, 1, T]
    error = (weights.sum(-1) - 1).abs().masked_fill(seen == 0, 0)  # [B, H, T]
    invalid = (error > SLACK) | (weights < -SLACK).any(-1)
    p = weights.clamp_min(0).double()
    bits = torch.special.entr(p).sum(-1) / math.log(2)  # [B, H, T]
    share = torch.where(seen > 1, bits / seen.clamp_min(2).double().log2(), 0)
    gradient = (1 - p.square().sum(-1)) * (seen > 0)
    numbers = bits, share, gradient, seen > 0, seen > 1, invalid
    return torch.stack([values.double().expand_as(bits).sum((0, 2)) for values in numbers])


def probe_entropy(
    run: Run,
    rows: Sequence[Row],
    *,
    kinds: Sequence[Kind] | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    device: str = "auto",
    progress: Callable[[str, int, int], object] | None = None,
) -> list[HeadEntropy]:
    """Return entropy and gradient of each head at each stage of a finished run, ordered by stage.

    Rows are truncated to the model's length as in training. Kinds None, or empty layers or heads, select all of them.
    `progress` is called with the stage, the number of rows read, and the number of all rows.

    Raises:
        UsageError: If the model has no attention, or no such kind, layer or head.
        MissingInputError: If there are no rows, or the run is not finished.
        DataError: If a checkpoint is damaged.
    """
    torch_device = pick_device(device)
    encoded = encoded_for(run, rows)
    return [
        HeadEntropy(stage, layer.kind, layer.layer, head, _means(column, layer.softmax))
        for stage, model in stages(run)
        for layer in sum_over_rows(
            model.to(torch_device),
            encoded,
            lambda maps: spread_sums(maps.weights, maps.visible),
            kinds=kinds,
            layers=layers,
            heads=heads,
            progress=None if progress is None else partial(progress, stage.name),
        )
        for head, column in zip(layer.heads, layer.sums.T.tolist(), strict=True)
    ]


def _means(sums: Sequence[float], softmax: bool) -> Spread:
    bits, share, gradient, queries, several, invalid = sums
    if invalid:
        return Spread(None, None, None)
    return Spread(
        bits / max(1, queries), share / several if several else None, gradient / max(1, queries) if softmax else None
    )


def stages(run: Run) -> Iterator[tuple[Stage, Model]]:
    """Yield the models of a finished run in the order of training, in evaluation mode on the CPU.

    Checkpoints equal to the selected weights are skipped, and so is the start if training began from another run
    (`train.init`, `attnkit convert`). Raises MissingInputError if the run is not finished, DataError if a checkpoint
    is damaged.
    """
    steps, selected = sorted(run.checkpoint_steps()), run.weights()
    if run.recipe.train.init is None and run.manifest.converted is None:  # otherwise the weights of another run
        yield Stage(0, "start"), run.untrained().eval()
        steps = [step for step in steps if step]
    for step in steps:
        path = run.checkpoints / f"step-{step}"
        stored, _ = checkpoint.load(path, prefix="model.")
        weights = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
        model = run.untrained()
        run.load(model, path, weights)
        if not all(torch.equal(tensor, weights[name]) for name, tensor in selected.items()):
            yield Stage(step, f"step {step}"), model.eval()
    yield Stage(run.outcome.step, "end"), run.model()
