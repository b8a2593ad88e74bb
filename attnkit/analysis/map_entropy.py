"""Entropy of attention maps, and the gradient that their softmax lets through, by head.

With p = softmax(a s), a the scale of the scores s, the derivative of the weights with respect to
the scores has the half L1 norm |dp/ds|_1 / 2 = a (1 - sum p^2): 0 where all weight is on one key,
so that the scores can learn nothing, and a small share of a where it is spread over many.  The
entropy of the weights bounds what an update can take from them.  Source: Su 2023, "Why does
attention usually use softmax?" (spaces.ac.cn/archives/9593).

Since softmax(a s) is p^a normalised, other scales are computed from the maps themselves: each layer
reads what it reads in the model as it is.
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
from attnkit.analysis.map_stream import LayerMaps, stream_maps
from attnkit.analysis.maps import Kind, MapLayer
from attnkit.data.objectives import apply_objective
from attnkit.data.rows import Row
from attnkit.device import pick_device
from attnkit.errors import MissingInputError, UsageError
from attnkit.models.base import Model
from attnkit.runs import Run
from attnkit.scoring.teacher_forced import encode_rows
from attnkit.train import checkpoint

SCALES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Factors of the scores."""
LARGEST = 1000.0


class Spread(NamedTuple):
    """Means over queries at one scale of the scores; None where a number is undefined."""

    entropy: float | None
    """In bits; None where the rows are no distributions."""
    share: float | None
    """Of the largest possible entropy, log2 of the visible keys; over queries that see two."""
    gradient: float | None
    """|dp/ds|_1 / 2; None where the map is no softmax of scores."""


class Stage(NamedTuple):
    """Weights of a run at one point of its training."""

    step: int
    """Updates so far."""
    name: str
    """start, step N, or end (the chosen weights)."""


@dataclass(frozen=True)
class HeadEntropy:
    """One head at one stage."""

    stage: Stage
    kind: Kind
    layer: MapLayer
    head: int
    spreads: dict[float, Spread]
    """By the scale of the scores; 1 is the model as it is."""


def sharpened(weights: Float[Tensor, "B H T S"], scale: float) -> Float[Tensor, "B H T S"]:
    """softmax(scale s) of weights softmax(s); rows of zeros stay zero."""
    if scale == 1:
        return weights
    # the largest of a row is divided out first: a power of small weights would vanish
    powers = (weights / weights.amax(-1, keepdim=True).clamp_min(1e-30)) ** scale
    return powers / powers.sum(-1, keepdim=True).clamp_min(1e-30)


def spread_sums(
    weights: Float[Tensor, "B H T S"], visible: Bool[Tensor, "B 1 T S"], scale: float = 1.0
) -> Float[Tensor, "3 H"]:
    """Sums over queries of entropy (bits), its share of the largest, and the gradient."""
    p = sharpened(weights.double(), scale)
    bits = torch.special.entr(p).sum(-1) / math.log(2)  # [B, H, T]
    seen = visible.sum(-1)  # [B, 1, T]
    share = torch.where(seen > 1, bits / seen.clamp_min(2).double().log2(), 0)
    gradient = scale * (1 - p.square().sum(-1)) * (seen > 0)
    return torch.stack([numbers.sum((0, 2)) for numbers in (bits, share, gradient)])


class _LayerSums:
    """Running sums of one layer."""

    def __init__(self, maps: LayerMaps, scales: Sequence[float]) -> None:
        self.kind, self.layer, self.heads = maps.kind, maps.layer, maps.heads
        self.softmax = maps.softmax
        # another scale needs scores whose softmax the map is
        self.scales = tuple(scales) if self.softmax else (1.0,)
        self.sums = torch.zeros(len(self.scales), 3, len(self.heads), dtype=torch.float64)
        self.defined = torch.ones(len(self.heads), dtype=torch.bool)
        self.queries = self.several = 0  # those that see a key, and those that see two or more

    def add(self, maps: LayerMaps) -> None:
        """Add the rows of a batch."""
        seen = maps.visible.sum(-1)  # [B, 1, T]
        off = (maps.weights.sum(-1) - 1).abs().masked_fill(seen == 0, 0)  # [B, H, T]
        wrong = (off > SLACK) | (maps.weights < -SLACK).any(-1)
        self.defined &= ~wrong.any(2).any(0).cpu()
        weights = maps.weights.clamp_min(0)
        for place, scale in enumerate(self.scales):
            self.sums[place] += spread_sums(weights, maps.visible, scale).cpu()
        self.queries += int((seen > 0).sum())
        self.several += int((seen > 1).sum())

    def head(self, place: int) -> dict[float, Spread]:
        """The means of one head by scale."""
        found = {}
        for scale, sums in zip(self.scales, self.sums[:, :, place].tolist(), strict=True):
            bits, share, gradient = sums
            found[scale] = Spread(
                bits / max(1, self.queries),
                share / self.several if self.several else None,
                gradient / max(1, self.queries) if self.softmax else None,
            )
        return found if self.defined[place] else dict.fromkeys(found, Spread(None, None, None))


def probe_entropy(
    run: Run,
    rows: Sequence[Row],
    *,
    scales: Sequence[float] = SCALES,
    steps: Sequence[int] | None = None,
    kinds: Sequence[Kind] | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    device: str = "auto",
    progress: Callable[[str, int, int], object] | None = None,
) -> list[HeadEntropy]:
    """Entropy and gradient of each head at each stage of a run, by stage.

    Args:
        run: a finished one.
        rows: given sources and targets, cut to the model's length as in training.
        scales: factors of the scores; 1 is always among them.
        steps: of checkpoints; all that differ from the chosen weights when None.
        kinds, layers, heads: which maps; all when None or empty.
        device: auto takes a GPU where there is one.
        progress: called with the stage, the rows read, and all rows.

    Raises:
        UsageError: a scale is out of range; no such kind, layer or head; no attention.
        MissingInputError: no rows; the run is not finished; a checkpoint is not there.
        DataError: a checkpoint is damaged.
    """
    for scale in scales:
        if not 0 < scale <= LARGEST:
            raise UsageError(f"--scale {scale:g}: must be above 0 and at most {LARGEST:g}")
    if not rows:
        raise MissingInputError("no rows to read")
    chosen, place = sorted({1.0, *scales}), pick_device(device)
    longest, stream = run.recipe.data.max_length, run.recipe.task == "language-modeling"
    tokenizer = run.tokenizer()
    encoded = encode_rows(rows, tokenizer, longest, stream=stream)
    encoded = apply_objective(encoded, tokenizer.target, run.recipe.train.objective, longest)
    found = []
    for stage, model in stages(run, steps):
        sums: dict[tuple[int, int], _LayerSums] = {}
        tell = None if progress is None else partial(progress, stage.name)
        stream_maps(
            model.to(place), encoded, partial(_add, sums, chosen),
            kinds=kinds, layers=layers, heads=heads, progress=tell,
        )  # fmt: skip
        found += [
            HeadEntropy(stage, sums[at].kind, sums[at].layer, head, sums[at].head(column))
            for at in sorted(sums)
            for column, head in enumerate(sums[at].heads)
        ]
    return found


def _add(sums: dict[tuple[int, int], _LayerSums], scales: Sequence[float], maps: LayerMaps) -> None:
    """Add a batch to the sums of its layer."""
    if maps.place not in sums:
        sums[maps.place] = _LayerSums(maps, scales)
    sums[maps.place].add(maps)


def stages(run: Run, steps: Sequence[int] | None = None) -> Iterator[tuple[Stage, Model]]:
    """The models of a run in the order of training, in evaluation mode on the CPU.

    The start is left out where training began from another run (`train.init`, `attnkit convert`).

    Args:
        run: a finished one.
        steps: of checkpoints; all that differ from the chosen weights when None.

    Raises:
        MissingInputError: the run is not finished, or a checkpoint is not there (any more).
        DataError: a checkpoint is damaged.
    """
    kept, chosen = sorted(run.checkpoint_steps()), run.weights()
    for step in steps or ():
        if step not in kept:
            there = f"it has {', '.join(map(str, kept))}" if kept else "it has none"
            raise MissingInputError(
                f"--step {step}: {run.path} has no checkpoint of that step ({there}); a training"
                " keeps its last two checkpoints, and those that train.average needs"
            )
    fresh = run.recipe.train.init is None and "converted" not in run.manifest  # else another run's
    if fresh:
        yield Stage(0, "start"), run.untrained().eval()
        kept = [step for step in kept if step]
    for step in kept if steps is None else sorted(set(steps)):
        path = run.checkpoints / f"step-{step}"
        stored, _ = checkpoint.load(path, prefix="model.")
        weights = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
        model = run.untrained()
        run.load(model, path, weights)
        final = all(torch.equal(tensor, weights[name]) for name, tensor in chosen.items())
        if steps is not None or not final:
            yield Stage(step, f"step {step}"), model.eval()
    yield Stage(int(run.manifest["finished"]["step"]), "end"), run.model()
