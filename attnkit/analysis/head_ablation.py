"""Head ablation: what the model loses without each attention head.

Source: Michel, Levy and Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3: the
head's output is set to zero at every position, the rest of the model stays as it was trained.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from attnkit.analysis.maps import Kind
from attnkit.analysis.recorder import choose_layers
from attnkit.attention import Out
from attnkit.data.rows import Row
from attnkit.device import pick_device
from attnkit.errors import MissingInputError, UsageError
from attnkit.recipe.metrics import METRICS, metric_facts
from attnkit.recipe.schema import EvalConfig
from attnkit.runs import Run
from attnkit.scoring import LABELS, TEXT, Score, check_available, compare, corrected, expand
from attnkit.scoring.evaluation import model_scores

Progress = Callable[[int, int], object]
"""Called with how many heads are done, and of how many."""


class HeadPlace(NamedTuple):
    """One head of the model."""

    kind: Kind
    layer: int
    head: int


class Effect(NamedTuple):
    """What the model loses on one metric without a head."""

    score: float
    """Without it."""
    loss: float
    """How much worse that is; below 0 the model is better without the head."""
    p: float | None
    """Paired bootstrap over the sentences, as in `attnkit eval`; None without resamples."""
    p_corrected: float | None
    """After Holm's correction over all ablated heads."""


@dataclass(frozen=True)
class Importance:
    """The scores of the whole model, and the effect of each head by metric."""

    whole: dict[str, Score]
    effects: dict[HeadPlace, dict[str, Effect]]
    rows: int
    resamples: int


@contextmanager
def ablated(model: nn.Module, place: HeadPlace) -> Iterator[None]:
    """The model without one head, in a whole pass as in cached steps of any search.

    Raises:
        UsageError: there is no such head.
    """
    chosen = choose_layers(model, [place.kind], [place.layer], [place.head])
    (layer,) = chosen[place.kind][0].values()

    def zero_head(_: nn.Module, args: Any, out: Out) -> Out:
        y = out.y.clone()
        y[:, place.head] = 0
        return out._replace(y=y)

    handle = layer.mechanism.register_forward_hook(zero_head)
    try:
        yield
    finally:
        handle.remove()


def probe_heads(
    run: Run,
    rows: Sequence[Row],
    *,
    metrics: Sequence[str] = ("perplexity",),
    kinds: Sequence[Kind] | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    eval: EvalConfig | None = None,
    resamples: int = 1000,
    device: str = "auto",
    progress: Progress | None = None,
) -> Importance:
    """Ablate each head in turn and score the rest of the model; the run is not changed.

    Args:
        run: a finished one.
        rows: what is scored; with metrics of output text each head costs a decoding of them.
        metrics: of the model's probabilities, or of its output by the run's own search.
        kinds, layers, heads: which heads; all when None or empty.
        eval: settings of the metrics; the recipe's when None.
        resamples: of the paired bootstrap; 0: no p-values.
        device: auto takes a GPU where there is one.
        progress: called after each head.

    Raises:
        UsageError: unknown metric, kind, layer or head; text metrics of a language model.
        UnavailableError: what a metric needs is not there.
        MissingInputError: the run is not finished, or there are no rows.
    """
    names = expand(metrics)
    check_metrics(names, run, eval or run.recipe.eval)
    if not rows:
        raise MissingInputError("no rows to score")
    model = run.model(pick_device(device))
    wanted = [
        HeadPlace(kind, layer, head)
        for kind, (parts, columns) in choose_layers(model, kinds, layers, heads).items()
        for layer in parts
        for head in columns
    ]
    scores = partial(model_scores, names, model, run.tokenizer(), rows, run.recipe, eval=eval)
    whole = scores()
    without: dict[HeadPlace, dict[str, Score]] = {}
    for place in wanted:
        with ablated(model, place):
            without[place] = scores()
        if progress is not None:
            progress(len(without), len(wanted))
    by_metric = {name: _effects(name, whole, without, resamples) for name in whole}
    effects = {place: {name: by_metric[name][place] for name in whole} for place in wanted}
    return Importance(whole, effects, len(rows), resamples)


def _effects(
    name: str,
    every: Mapping[str, Score],
    without: Mapping[HeadPlace, Mapping[str, Score]],
    resamples: int,
) -> dict[HeadPlace, Effect]:
    """The effect of each head on one metric."""
    whole, scores = every[name], {place: some[name] for place, some in without.items()}
    sign = 1 if metric_facts(name).better == "lower" else -1
    tests: list[tuple[float | None, float | None]] = [(None, None)] * len(scores)
    if resamples and whole.resampled:
        p_values = [compare([one], [whole], resamples=resamples).p for one in scores.values()]
        tests = list(zip(p_values, corrected(p_values), strict=True))
    return {
        place: Effect(one.value, sign * (one.value - whole.value), *test)
        for (place, one), test in zip(scores.items(), tests, strict=True)
    }


def check_metrics(names: Sequence[str], run: Run, eval: EvalConfig) -> None:
    """Refuse metrics that the run cannot have or that cannot say what is worse."""
    stream = run.recipe.task == "language-modeling"
    if stream and (wrong := [name for name in names if name in TEXT]):
        raise UsageError(
            f"--metrics {wrong[0]} scores output text, which language modelling has none of; use "
            "perplexity or accuracy"
        )
    classifies = run.recipe.task == "classification"
    if wrong := [name for name in names if name in (TEXT if classifies else LABELS)]:
        raise UsageError(f"--metrics {wrong[0]} does not score runs of {run.recipe.task}")
    if wrong := [name for name in names if METRICS[name].better == "neither"]:
        raise UsageError(
            f"--metrics {wrong[0]}: neither higher nor lower is better, so nothing can be lost"
        )
    check_available(names, eval)
