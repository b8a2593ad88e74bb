"""Noise on attention scores, before the softmax and after the mask: how much it moves the output.

Of a trained model: its scores on a metric, with noise in all layers or in some.  On made-up scores
and values: the standard deviation of the output against the first-order law for Gaussian noise of
standard deviation sigma,

    std(o~ - o) = sqrt((e^(sigma^2) - 1) sum_i p_i^2 |v_i - o|^2),

which follows from o~ = sum e^(s + noise) v / sum e^(s + noise) by the delta method.  It shrinks
with the number of keys that share the weight, 1 / sum p^2, and fails where few do.  Source of the
question: Su 2023, "Why does attention usually use softmax?" (spaces.ac.cn/archives/9593), part 1.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

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
LONGEST, SHARPEST = 2**16, 100.0
"""Keys, and standard deviation of the scores, of the law at most."""
SETS, DRAWS, WIDTH = 8, 1000, 64
"""Of the law: sets of scores and values, draws of noise for each, and width of a value."""
AT_ONCE = 2**21
"""Noise held at a time: 8 MB."""


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


class NoiseLaw(NamedTuple):
    """Noise on the scores of one query over `length` keys; values have standard deviation 1."""

    length: int
    sharpness: float
    """Standard deviation of the scores."""
    sigma: float
    keys: float
    """1 / sum p^2, over how many keys the weight is spread; the harmonic mean of the sets."""
    measured: float
    """Standard deviation of the output, by channel."""
    predicted: float
    """The same by the law."""


@contextmanager
def noisy(model: nn.Module, layers: Sequence[MultiHead], sigma: float, seed: int) -> Iterator[None]:
    """The model with Gaussian noise on the scores of some layers, in evaluation too.

    Masked keys stay masked.  The noise depends on the seed alone; the global random state stays.

    Raises:
        ValueError: a layer forms no scores.
    """
    mechanisms = [layer.mechanism for layer in layers]
    devices = {weight.device for weight in model.parameters() if weight.device.type == "cuda"}
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        try:
            for mechanism in mechanisms:
                if not isinstance(mechanism, Scored):
                    raise ValueError(f"{type(mechanism).__name__} forms no scores")
                mechanism.evaluation_noise = sigma
            yield
        finally:
            for mechanism in mechanisms:
                if isinstance(mechanism, Scored):
                    mechanism.evaluation_noise = 0.0


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
    done, total = 0, len(parts) * len(sigmas) * seeds
    for part, chosen in parts.items():
        for sigma in sigmas:
            values: dict[str, list[float]] = {name: [] for name in clean}
            for seed in range(1, seeds + 1):
                with noisy(model, chosen, sigma, seed):
                    scores = model_scores(names, model, tokenizer, rows, recipe)
                for name, score in scores.items():
                    values[name].append(score.value)
                done += 1
                if progress is not None:
                    progress(done, total)
            found[part, sigma] = values
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
    chosen = choose_layers(model, kinds, layers)
    if not chosen:
        raise UsageError(f"a {model.shape} model without attention has no scores")
    scored = [
        kind
        for kind, (parts, _) in chosen.items()
        if all(isinstance(part.mechanism, Scored) for part in parts.values())
    ]
    groups: dict[NoisyPart, list[MultiHead]] = {}
    for kind, (parts, _) in chosen.items():
        if kind not in scored:
            names = {
                describe(number, part).mechanism
                for number, part in parts.items()
                if not isinstance(part.mechanism, Scored)
            }
            use = "".join(f" --kind {one}" for one in scored)
            raise UsageError(
                f"{kind} attention is {' and '.join(sorted(names))}, which forms no scores of "
                f"queries and keys to add noise to{use and f'; use{use}'}"
            )
        for number, part in parts.items():
            place = {"model": NoisyPart(), "kind": NoisyPart(kind)}.get(by)
            groups.setdefault(place or NoisyPart(kind, number), []).append(part)
    return groups


def check_law(lengths: Sequence[int], sharpness: Sequence[float], sigmas: Sequence[float]) -> None:
    """Raise UsageError where a setting of `noise_law` is out of range."""
    check_sigmas(sigmas)
    for length in lengths:
        if not 1 <= length <= LONGEST:
            raise UsageError(f"--lengths {length}: must be 1 to {LONGEST}")
    for spread in sharpness:
        if not 0 <= spread <= SHARPEST:
            raise UsageError(f"--sharpness {spread:g}: must be 0 to {SHARPEST:g}")


def noise_law(
    length: int, sharpness: float, sigmas: Sequence[float] = SIGMAS, *, seed: int = 1
) -> list[NoiseLaw]:
    """Measured and predicted noise of the output for one query, by sigma.

    Scores are from N(0, sharpness^2) and values from N(0, 1): SETS of them, DRAWS of noise each,
    the same for every sigma.

    Raises:
        UsageError: a number is out of range.
    """
    check_law([length], [sharpness], sigmas)
    generator = torch.Generator().manual_seed(seed)
    spread = 0.0  # sum p^2
    measured, predicted = torch.zeros(2, len(sigmas), dtype=torch.float64)
    for _ in range(SETS):
        scores = torch.randn(length, generator=generator) * sharpness
        values = torch.randn(length, WIDTH, generator=generator)
        weights = scores.softmax(-1)
        output = weights @ values
        squares = weights.double().square()
        apart = (squares @ (values - output).double().square()).mean()
        spread += float(squares.sum()) / SETS
        sums, many = torch.zeros(2, len(sigmas), WIDTH, dtype=torch.float64), 0
        while many < DRAWS:
            count = min(DRAWS - many, max(1, AT_ONCE // length))
            noise = torch.randn(count, length, generator=generator)
            many += count
            for place, sigma in enumerate(sigmas):
                moved = ((scores + sigma * noise).softmax(-1) @ values - output).double()
                sums[:, place] += torch.stack([moved.sum(0), moved.square().sum(0)])
        means = sums / DRAWS
        measured += (means[1] - means[0].square()).mean(-1) / SETS
        for place, sigma in enumerate(sigmas):
            predicted[place] += math.expm1(sigma**2) * apart / SETS
    return [
        NoiseLaw(length, sharpness, sigma, 1 / spread, found, law)
        for sigma, found, law in zip(
            sigmas, measured.sqrt().tolist(), predicted.sqrt().tolist(), strict=True
        )
    ]
