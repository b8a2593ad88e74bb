"""How much each attention head is worth: what the model loses without it.

Source: Michel, Levy and Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3: the
head's output is set to zero at every position, the rest of the model stays as it was trained.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from attnkit.analysis.maps import Kind
from attnkit.analysis.recorder import choose_layers
from attnkit.attention import Out
from attnkit.data.rows import Row
from attnkit.data.tokenizer import Tokenizer
from attnkit.device import pick_device
from attnkit.errors import MissingInputError, UsageError
from attnkit.models.base import Model
from attnkit.recipe.schema import LOWER_IS_BETTER, EvalConfig
from attnkit.runs import Run
from attnkit.scoring import FORCED, TEXT, Comparison, Score, compare, corrected, expand, score
from attnkit.scoring.teacher_forced import forced_scores
from attnkit.search import translate

Progress = Callable[[int, int], object]
"""Called with how many heads are done, and of how many."""


class HeadPlace(NamedTuple):
    """A head."""

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
    """After doubling and Holm's correction over all heads that were probed."""


@dataclass(frozen=True)
class Importance:
    """The scores of the whole model, and the effect of each head by metric."""

    whole: dict[str, Score]
    effects: dict[HeadPlace, dict[str, Effect]]
    rows: int
    resamples: int


@contextmanager
def silenced(model: nn.Module, place: HeadPlace) -> Iterator[None]:
    """The model without one head, in a whole pass as in cached steps of any search.

    Raises:
        UsageError: there is no such head.
    """
    chosen = choose_layers(model, [place.kind], [place.layer], [place.head])
    (layer,) = chosen[place.kind][0].values()

    def silence(_: nn.Module, args: Any, out: Out) -> Out:
        y = out.y.clone()
        y[:, place.head] = 0
        return out._replace(y=y)

    handle = layer.mechanism.register_forward_hook(silence)
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
    resamples: int = 10_000,
    device: str = "auto",
    progress: Progress | None = None,
) -> Importance:
    """Take each head away in turn and score what is left; the run is not changed.

    Args:
        run: a finished one.
        rows: what is scored; with metrics of output text each head costs a decoding of them.
        metrics: of the model's probabilities, or of its output by the run's own search.
        kinds, layers, heads: which heads; all when None or empty.
        eval: settings of the metrics; the recipe's when None.
        resamples: of the paired bootstrap, enough for a p that many heads do not hide; 0: no p.
        device: auto takes a GPU where there is one.
        progress: told after each head.

    Raises:
        UsageError: unknown metric, kind, layer or head; text metrics of a language model.
        MissingInputError: the run is not finished, or there are no rows.
    """
    names = expand(metrics)
    task = run.recipe.task
    if task == "language-modeling" and (wrong := [name for name in names if name in TEXT]):
        raise UsageError(
            f"--metrics {wrong[0]} scores output text, which language modelling has none of; use "
            "perplexity or accuracy"
        )
    if not rows:
        raise MissingInputError("no rows to score")
    model = run.model(pick_device(device))
    wanted = probed(model, kinds, layers, heads)
    scorer = _Scorer(run, model, run.tokenizer(), rows, names, eval or run.recipe.eval)
    whole = scorer.scores()
    without: dict[HeadPlace, dict[str, Score]] = {}
    for place in wanted:
        with silenced(model, place):
            without[place] = scorer.scores()
        if progress is not None:
            progress(len(without), len(wanted))
    effects: dict[HeadPlace, dict[str, Effect]] = {place: {} for place in wanted}
    for name in names:
        own = {place: scores[name] for place, scores in without.items()}
        for place, effect in _effects(own, whole[name], resamples).items():
            effects[place][name] = effect
    return Importance(whole, effects, len(rows), resamples)


def probed(
    model: Model,
    kinds: Sequence[Kind] | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
) -> list[HeadPlace]:
    """The chosen heads of a model, in order.

    Raises:
        UsageError: the model has no such kind, layer or head.
    """
    return [
        HeadPlace(kind, layer, head)
        for kind, (parts, columns) in choose_layers(model, kinds, layers, heads).items()
        for layer in parts
        for head in columns
    ]


class _Scorer(NamedTuple):
    """What is scored, and how."""

    run: Run
    model: Model
    tokenizer: Tokenizer
    rows: Sequence[Row]
    names: Sequence[str]
    eval: EvalConfig

    def scores(self) -> dict[str, Score]:
        """The scores of the model as it is now."""
        recipe = self.run.recipe
        device = str(self.model.output.weight.device)
        found: dict[str, Score] = {}
        if any(name in TEXT for name in self.names):
            answers = translate(
                self.model,
                self.tokenizer,
                [row.source for row in self.rows],
                recipe.search.model_copy(update={"n_best": 1}),
                max_source=recipe.data.max_length,
            )
            texts = [answer[0][0] for answer in answers]
            references = [list(row.references or (row.target,)) for row in self.rows]
            text = [name for name in self.names if name in TEXT]
            found |= score(text, texts, references, self.eval)
        if any(name in FORCED for name in self.names):
            found |= forced_scores(
                self.names,
                self.model,
                self.tokenizer,
                self.rows,
                max_length=recipe.data.max_length,
                stream=recipe.task == "language-modeling",
                device=device,
            )
        return found


def _effects(
    without: Mapping[HeadPlace, Score], whole: Score, resamples: int
) -> dict[HeadPlace, Effect]:
    """Each head's effect on one metric."""
    sign = 1 if whole.metric in LOWER_IS_BETTER else -1
    tests: dict[HeadPlace, Comparison] = {}
    if resamples:
        tests = {
            place: compare([one], [whole], resamples=resamples) for place, one in without.items()
        }
    adjusted = dict(zip(tests, corrected([test.p for test in tests.values()]), strict=True))
    return {
        place: Effect(
            one.value,
            sign * (one.value - whole.value),
            tests[place].p if place in tests else None,
            adjusted.get(place),
        )
        for place, one in without.items()
    }
