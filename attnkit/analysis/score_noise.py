"""Noise on the attention scores of a trained model, before the softmax and after the mask.

What a metric loses with noise in all layers or in some.  Source of the question: Su 2023, "Why does
attention usually use softmax?" (spaces.ac.cn/archives/9593), part 1.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, cast

import torch
from torch import nn

from attnkit.analysis.head_ablation import check_metrics
from attnkit.analysis.maps import Kind
from attnkit.analysis.recorder import choose_layers, describe
from attnkit.attention import Scored
from attnkit.data.rows import Row
from attnkit.device import pick_device
from attnkit.errors import MissingInputError, UsageError
from attnkit.layers import MultiHead
from attnkit.models.base import Model
from attnkit.runs import Run
from attnkit.scoring import Score, expand
from attnkit.scoring.evaluation import model_scores

SIGMAS = (0.25, 0.5, 1.0, 2.0, 4.0)
LARGEST = 20.0
"""e^(sigma^2) has no double from 27 on."""


class NoisyPart(NamedTuple):
    """The layers that are noisy together."""

    kind: Kind | None = None
    """All kinds when None."""
    layer: int | None = None
    """All layers when None."""


@dataclass(frozen=True)
class NoiseEffects:
    """Scores of a model without noise, and with it by part, sigma and metric, one a noise seed."""

    clean: dict[str, Score]
    noisy: dict[tuple[NoisyPart, float], dict[str, list[float]]]
    rows: int
    seeds: int


@contextmanager
def noisy(model: nn.Module, layers: Sequence[MultiHead], sigma: float, seed: int) -> Iterator[None]:
    """The model with Gaussian noise on the scores of some layers, in evaluation too.

    Masked keys stay masked.  The noise depends on the seed alone; the global random state stays.
    """
    devices = {weight.device for weight in model.parameters() if weight.device.type == "cuda"}
    with torch.random.fork_rng(devices=devices), ExitStack() as after:
        torch.manual_seed(seed)
        for layer in layers:
            mechanism = cast(Scored, layer.mechanism)
            mechanism.evaluation_noise = sigma
            after.callback(setattr, mechanism, "evaluation_noise", 0.0)
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
    progress: Callable[[int, int], object] | None = None,
) -> NoiseEffects:
    """Score a model with noise on its attention scores; the run is not changed.

    Args:
        run: a finished one.
        rows: what is scored; metrics of output text decode them anew for every part, sigma, seed.
        sigmas: standard deviations of the noise.
        by: which layers are noisy together: all ("model"), those of a kind, or one ("layer").
        seeds: how often the noise is drawn; draws are the same for every sigma.
        metrics: of the model's probabilities, or of its output by the run's own search.
        kinds, layers: which layers are noisy; all when None or empty.
        device: auto takes a GPU where there is one.
        progress: called after each scoring with how many are done, and of how many.

    Raises:
        UsageError: a sigma or the number of seeds is out of range; a metric, kind or layer is not
            there; a layer forms no scores.
        UnavailableError: what a metric needs is not there.
        MissingInputError: the run is not finished, or there are no rows.
    """
    check_sigmas(sigmas)
    if seeds < 1:
        raise UsageError(f"--seeds {seeds}: must be at least 1")
    names = expand(metrics)
    check_metrics(names, run, run.recipe.eval)
    if not rows:
        raise MissingInputError("no rows to score")
    model = run.model(pick_device(device))
    parts = _parts(model, by, kinds, layers)
    tokenizer, recipe = run.tokenizer(), run.recipe
    clean = model_scores(names, model, tokenizer, rows, recipe)
    found: dict[tuple[NoisyPart, float], dict[str, list[float]]] = {}
    draws = [*product(parts.items(), sigmas, range(1, seeds + 1))]
    for done, ((part, chosen), sigma, seed) in enumerate(draws, 1):
        with noisy(model, chosen, sigma, seed):
            scores = model_scores(names, model, tokenizer, rows, recipe)
        values = found.setdefault((part, sigma), {name: [] for name in clean})
        for name, score in scores.items():
            values[name].append(score.value)
        if progress is not None:
            progress(done, len(draws))
    return NoiseEffects(clean, found, len(rows), seeds)


def check_sigmas(sigmas: Sequence[float]) -> None:
    """Raise UsageError where there is none, or one is out of range."""
    for sigma in sigmas or (0.0,):
        if not 0 < sigma <= LARGEST:
            raise UsageError(f"--sigma {sigma:g}: must be above 0 and at most {LARGEST:g}")


def _parts(
    model: Model, by: str, kinds: Sequence[Kind] | None, layers: Sequence[int]
) -> dict[NoisyPart, list[MultiHead]]:
    """The chosen layers, in groups that are noisy together.

    Raises:
        UsageError: there is no such layer, or one forms no scores.
    """
    groups: dict[NoisyPart, list[MultiHead]] = {}
    for kind, (parts, _) in choose_layers(model, kinds, layers).items():
        for number, part in parts.items():
            if not isinstance(part.mechanism, Scored):
                raise UsageError(
                    f"{kind} attention is {describe(number, part).mechanism}, which forms no "
                    "scores of queries and keys to add noise to; choose another --kind or --layer"
                )
            place = {"model": NoisyPart(), "kind": NoisyPart(kind)}.get(by)
            groups.setdefault(place or NoisyPart(kind, number), []).append(part)
    return groups
