"""Noise on the attention scores of a trained model, after the mask and before the softmax.

Measures what a metric loses with noise in all or some layers. Source of the question: Su 2023, "Why does attention
usually use softmax?" (spaces.ac.cn/archives/9593), part 1.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, cast

import torch
from torch import nn

from attnkit.analysis.head_ablation import Progress, score_changed
from attnkit.analysis.maps import Kind
from attnkit.analysis.recorder import choose_layers, describe
from attnkit.attention import Scored
from attnkit.data.rows import Row
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.models.base import Model
from attnkit.runs import Run
from attnkit.scoring import Score

SIGMAS = (0.25, 0.5, 1.0, 2.0, 4.0)
MAX_SIGMA = 20.0
"""Maximum sigma; e^(sigma^2) overflows a double from 27 on."""


class NoisyPart(NamedTuple):
    """Layers that are noisy together; None: all kinds, or all layers."""

    kind: Kind | None = None
    layer: int | None = None


NoiseDraw = tuple[NoisyPart, float, int]
"""Noisy layers, sigma and seed of the noise."""


@dataclass(frozen=True)
class NoiseEffects:
    """Scores of a model without noise, and with noise by part, sigma and metric, one score per seed."""

    clean: dict[str, Score]
    noisy: dict[tuple[NoisyPart, float], dict[str, list[float]]]
    rows: int
    seeds: int


@contextmanager
def noisy(model: nn.Module, layers: Sequence[MultiHead], sigma: float, seed: int) -> Iterator[None]:
    """Add Gaussian noise drawn from `seed` to the unmasked scores of `layers`; the global random state is kept."""
    devices = {weight.device for weight in model.parameters() if weight.device.type == "cuda"}
    with torch.random.fork_rng(devices=devices), ExitStack() as cleanup:
        torch.manual_seed(seed)
        for layer in layers:
            mechanism = cast(Scored, layer.mechanism)
            mechanism.evaluation_noise = sigma
            cleanup.callback(setattr, mechanism, "evaluation_noise", 0.0)
        yield


def probe_noise(
    run: Run,
    rows: Sequence[Row],
    *,
    sigmas: Sequence[float] = SIGMAS,
    by: str = "model",
    seeds: int = 3,
    metrics: Sequence[str] = ("perplexity",),
    kinds: Sequence[Kind] | None = None,
    layers: Sequence[int] = (),
    device: str = "auto",
    progress: Progress | None = None,
) -> NoiseEffects:
    """Score a model with noise on its attention scores; other arguments and errors are those of `score_changed`.

    Args:
        sigmas: standard deviations of the noise.
        by: layers that are noisy together: all ("model"), those of a kind ("kind"), or one ("layer").
        seeds: number of draws of the noise, which are the same for every sigma.
        kinds, layers: noisy layers; None or empty: all.

    Raises:
        UsageError: If an argument is out of range, a layer does not exist, or a layer computes no scores.
    """
    check_sigmas(sigmas)
    if seeds < 1:
        raise UsageError(f"--seeds {seeds}: must be at least 1")

    def changes(model: Model) -> dict[NoiseDraw, AbstractContextManager[None]]:
        parts = _parts(model, by, kinds, layers)
        return {
            (part, sigma, seed): noisy(model, parts[part], sigma, seed)
            for part, sigma, seed in product(parts, sigmas, range(1, seeds + 1))
        }

    clean, noisy_scores = score_changed(run, rows, metrics, changes, device, progress)
    by_part: dict[tuple[NoisyPart, float], dict[str, list[float]]] = {}
    for (part, sigma, _), scores in noisy_scores.items():
        values = by_part.setdefault((part, sigma), {name: [] for name in clean})
        for name, score in scores.items():
            values[name].append(score.value)
    return NoiseEffects(clean, by_part, len(rows), seeds)


def check_sigmas(sigmas: Sequence[float]) -> None:
    """Raise UsageError if there are no sigmas, or one is out of range."""
    for sigma in sigmas or (0.0,):
        if not 0 < sigma <= MAX_SIGMA:
            raise UsageError(f"--sigma {sigma:g}: must be above 0 and at most {MAX_SIGMA:g}")


def _parts(
    model: Model, by: str, kinds: Sequence[Kind] | None, layers: Sequence[int]
) -> dict[NoisyPart, list[MultiHead]]:
    """Return the selected layers, grouped by `by`. Raises UsageError if one does not exist, or computes no scores."""
    groups: dict[NoisyPart, list[MultiHead]] = {}
    for kind, (parts, _) in choose_layers(model, kinds, layers).items():
        for number, part in parts.items():
            if not isinstance(part.mechanism, Scored):
                raise UsageError(
                    f"{kind} attention is {describe(number, part).mechanism}, which has no attention scores to "
                    "add noise to; choose another --kind or --layer"
                )
            group = {"model": NoisyPart(), "kind": NoisyPart(kind)}.get(by)
            groups.setdefault(group or NoisyPart(kind, number), []).append(part)
    return groups
