"""Head ablation: the change of a model's scores without each attention head.

Source: Michel, Levy and Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3: the output of the head is
set to zero at every position, the rest of the model stays as trained.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from torch import nn

from attnkit.analysis.maps import Kind
from attnkit.analysis.recorder import choose_layers
from attnkit.attention import Out
from attnkit.data.rows import Row
from attnkit.device import pick_device
from attnkit.errors import MissingInputError, UsageError
from attnkit.models.base import Model
from attnkit.recipe.metrics import metric_facts, metrics_of
from attnkit.recipe.schema import EvalConfig
from attnkit.runs import Run
from attnkit.scoring import Score, check_available, check_known, compare, corrected, expand
from attnkit.scoring.evaluation import model_scores

RESAMPLES = 1000
"""Number of resamples of the paired bootstrap."""
ChangeKey = TypeVar("ChangeKey", bound=Hashable)
"""Key of a changed model."""
Progress = Callable[[int, int], object]
"""Called with the number of changes scored so far, and of all changes."""


class HeadPlace(NamedTuple):
    """Position of a head in the model."""

    kind: Kind
    layer: int
    head: int


class Effect(NamedTuple):
    """Effect of ablating a head on one metric."""

    score: float
    """Score without the head."""
    loss: float
    """How much worse the score is; negative if the model is better without the head."""
    p: float | None
    """p-value of the paired bootstrap over sentences, as in `attnkit eval`; None if the metric has none."""
    p_corrected: float | None
    """p-value after Holm's correction over all ablated heads."""


@dataclass(frozen=True)
class Importance:
    """Scores of the whole model, and effects of each head by metric."""

    whole: dict[str, Score]
    effects: dict[HeadPlace, dict[str, Effect]]
    rows: int
    resamples: int


@contextmanager
def ablated(model: nn.Module, place: HeadPlace) -> Iterator[None]:
    """Ablate a head inside the context, also in cached steps of a search. Raises UsageError if it does not exist."""
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
    device: str = "auto",
    progress: Progress | None = None,
) -> Importance:
    """Ablate each of the heads (None or empty: all) in turn, and score the model without it.

    Other arguments and errors are those of `score_changed`. Raises UsageError if a kind, layer or head does not exist.
    """

    def changes(model: Model) -> dict[HeadPlace, AbstractContextManager[None]]:
        places = [
            HeadPlace(kind, layer, head)
            for kind, (parts, columns) in choose_layers(model, kinds, layers, heads).items()
            for layer in parts
            for head in columns
        ]
        return {place: ablated(model, place) for place in places}

    whole, ablated_scores = score_changed(run, rows, metrics, changes, device, progress)
    by_metric = {name: _effects(name, whole, ablated_scores) for name in whole}
    effects = {place: {name: by_metric[name][place] for name in whole} for place in ablated_scores}
    return Importance(whole, effects, len(rows), RESAMPLES)


def score_changed(
    run: Run,
    rows: Sequence[Row],
    metrics: Sequence[str],
    changes: Callable[[Model], Mapping[ChangeKey, AbstractContextManager[None]]],
    device: str,
    progress: Progress | None,
) -> tuple[dict[str, Score], dict[ChangeKey, dict[str, Score]]]:
    """Score the model of a finished run unchanged, and inside each context that changes it.

    The run itself does not change. For metrics of output text, rows are decoded again in each context, with the run's
    search.

    Raises:
        UsageError: If a metric is unknown, or a metric of text is requested for a language model.
        UnavailableError: If a requirement of a metric is not installed.
        MissingInputError: If the run is not finished, or there are no rows.
    """
    names = expand(metrics)
    check_known(names, run.recipe.task, metrics_of(run.recipe.task))
    if wrong := [name for name in names if metric_facts(name).better == "neither"]:
        raise UsageError(f"--metrics {wrong[0]}: neither higher nor lower is better, so the loss is undefined")
    check_available(names, run.recipe.eval)
    if not rows:
        raise MissingInputError("no rows to score")
    model = run.model(pick_device(device))
    contexts = changes(model)
    scores = partial(model_scores, names, model, run.tokenizer(), rows, run.recipe)
    whole, changed = scores(), dict[ChangeKey, dict[str, Score]]()
    for key, context in contexts.items():
        with context:
            changed[key] = scores()
        if progress is not None:
            progress(len(changed), len(contexts))
    return whole, changed


def _effects(
    name: str, whole_scores: Mapping[str, Score], ablated_scores: Mapping[HeadPlace, Mapping[str, Score]]
) -> dict[HeadPlace, Effect]:
    whole, scores = whole_scores[name], {place: by_metric[name] for place, by_metric in ablated_scores.items()}
    sign = 1 if metric_facts(name).better == "lower" else -1
    tests: list[tuple[float | None, float | None]] = [(None, None)] * len(scores)
    if whole.resampled:
        settings = EvalConfig(bootstrap=RESAMPLES)
        p_values = [compare([score], [whole], settings).p for score in scores.values()]
        tests = list(zip(p_values, corrected(p_values), strict=True))
    return {
        place: Effect(score.value, sign * (score.value - whole.value), *test)
        for (place, score), test in zip(scores.items(), tests, strict=True)
    }
