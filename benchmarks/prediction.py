"""Whether accuracy in recall predicts the loss of a mechanism on other tasks, from stored runs.

`python benchmarks/publish.py` writes the page and its chart. The hypothesis and the rules by which it is judged are in
results/recall-predicts.md, written before the rows were trained.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from common import table
from recall import Scores, recalled

from attnkit.recipe.metrics import metric_facts
from attnkit.runs import Run
from attnkit.scoring.saved_scores import saved_rows
from attnkit.show.figure import matplotlib_defaults, rendered

PREDICTORS = ("associative-recall", "induction")
MIN_DECIDED, MIN_COMPUTED = 8, 3
"""Minimum number of mechanisms for a verdict, and for a correlation."""
RESAMPLES, SEED = 10_000, 1
MECHANISMS = {"vanilla": "scaled-dot", "dense": "synthesizer-dense", "random": "synthesizer-random"}
"""Mechanisms of variants that are named as in the paper on Synthesizers."""


class Target(NamedTuple):
    """A score that recall may predict."""

    recipe: str
    metric: str
    predicted: bool | None
    """What the hypothesis states; None: nothing, so the result is exploratory."""


TARGETS = (
    Target("language-modeling/wikitext-2", "word-perplexity", True),
    Target("summarization/acl-titles", "rouge1", True),
    Target("translation/multi30k-small", "bleu", False),
    Target("summarization/events", "rouge1", None),
    Target("dialogue/personas", "bleu4", None),
    Target("classification/sst2", "label-accuracy", None),
)


class Correlation(NamedTuple):
    """Spearman's rank correlation over mechanisms, with its 95 % interval."""

    names: tuple[str, ...]
    recall: tuple[float, ...]
    gain: tuple[float, ...]
    """Score minus that of scaled-dot attention, positive if it is better."""
    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")

    @property
    def verdict(self) -> str:
        if len(self.names) < MIN_DECIDED:
            return f"undecided: {len(self.names)} mechanisms, {MIN_DECIDED} are needed"
        if self.low > 0:
            return "predicts"
        return "does not predict" if self.high < 0.5 else "undecided"


Correlations = dict[tuple[Target, str], Correlation]
"""By target and predictor, for the targets that are trained."""
NOTHING = Correlation((), (), ())


def recall_of(scores: Scores) -> dict[str, float]:
    """Return the mean over lengths of the median accuracy over seeds, by variant."""
    return {name: fmean(map(median, lengths.values())) for name, lengths in scores.items()}


def gains(runs: Sequence[Run], metric: str) -> dict[str, float]:
    """Return the mean over seeds minus that of scaled-dot, by variant, on the first split."""
    scores: dict[str, list[float]] = {}
    for run in runs:
        row = next(iter(saved_rows(run)))
        scores.setdefault(MECHANISMS.get(row.variant, row.variant), []).append(row.scores[metric].value)
    sign = -1 if metric_facts(metric).better == "lower" else 1
    plain = fmean(scores["scaled-dot"])
    return {name: sign * (fmean(some) - plain) for name, some in scores.items()}


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks along the last axis; equal values get the mean of their ranks."""
    below = (values[..., :, None] > values[..., None, :]).sum(-1)
    same = (values[..., :, None] == values[..., None, :]).sum(-1)
    return np.asarray(below + (same - 1) / 2)


def spearman(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the rank correlation along the last axis; 0 if all values of a side are equal."""
    a, b = (one - one.mean(-1, keepdims=True) for one in (ranks(left), ranks(right)))
    size = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return np.asarray((a * b).sum(-1) / np.where(size > 0, size, 1))


def correlation(recall: Mapping[str, float], gain: Mapping[str, float]) -> Correlation:
    """Return the correlation over the mechanisms that both have, with an interval by bootstrap over mechanisms."""
    names = tuple(name for name in recall if name in gain)
    left, right = (np.array([some[name] for name in names]) for some in (recall, gain))
    found = Correlation(names, tuple(left.tolist()), tuple(right.tolist()))
    if len(names) < MIN_COMPUTED:
        return found
    drawn = np.random.default_rng(SEED).integers(len(names), size=(RESAMPLES, len(names)))
    low, high = np.quantile(spearman(left[drawn], right[drawn]), (0.025, 0.975))
    return found._replace(value=float(spearman(left, right)), low=float(low), high=float(high))


def beside(one: Correlation, first: Correlation) -> str:
    """Return the verdict on a score that recall should not predict.

    Its correlation must also be lower than the first, by the interval of their difference over the same resampled
    mechanisms.
    """
    both = [name for name in one.names if name in first.names]
    if one.verdict != "does not predict":
        return one.verdict
    if len(both) < MIN_DECIDED:
        return f"undecided: the first statement has {len(both)} of these mechanisms, {MIN_DECIDED} are needed"
    recall, low, high = (
        np.array([dict(zip(some.names, values, strict=True))[name] for name in both])
        for some, values in ((one, one.recall), (one, one.gain), (first, first.gain))
    )
    drawn = np.random.default_rng(SEED).integers(len(both), size=(RESAMPLES, len(both)))
    differences = spearman(recall[drawn], high[drawn]) - spearman(recall[drawn], low[drawn])
    return one.verdict if np.quantile(differences, 0.025) > 0 else "undecided: not below the first statement's"


def correlations(kept: Mapping[str, Sequence[Run]]) -> Correlations:
    """Return the correlation of each predictor with each target that is trained."""
    tasks = recalled(kept)
    recall = {task: recall_of(tasks.get(task, {})) for task in PREDICTORS}
    return {
        (target, task): correlation(recall[task], gains(kept[target.recipe], target.metric))
        for target in TARGETS
        if target.recipe in kept
        for task in PREDICTORS
    }


def page(found: Correlations) -> str:
    """Return the page, with a line for each target and predictor."""
    lines, first = [], {task: one for (target, task), one in found.items() if target == TARGETS[0]}
    for (target, task), one in found.items():
        verdict = beside(one, first.get(task, NOTHING)) if target.predicted is False else one.verdict
        says = {True: "predicts", False: "does not predict", None: "exploratory"}[target.predicted]
        value = f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]" if len(one.names) >= MIN_COMPUTED else "-"
        lines.append([target.recipe, metric_facts(target.metric).title, task, len(one.names), value, says, verdict])
    trained = {target for target, _ in found}
    untrained = [target.recipe for target in TARGETS if target not in trained]
    text = [
        "# Does recall predict what a mechanism loses on other tasks?",
        "",
        "Hypothesis and rules: [written before](../recall-predicts.md). Spearman's rank correlation across mechanisms",
        "between accuracy in a diagnostic and the score of the recipe, minus that of scaled-dot attention, signed so",
        f'that positive means "better recall, better score"; 95 % interval by {RESAMPLES:,} resamples of mechanisms.',
        "",
        table("recipe | score | diagnostic | mechanisms | correlation | hypothesis | verdict", lines, 3),
        "",
        *([f"Not trained: {', '.join(untrained)}.", ""] if untrained else []),
        "![accuracy in associative recall against the score of each recipe](recall-predicts.svg)",
    ]
    return "\n".join(text) + "\n"


def chart(found: Correlations) -> str:
    """Return scores against associative recall as SVG, a panel for each recipe."""
    from matplotlib.figure import Figure

    drawn = {
        target: one
        for (target, task), one in found.items()
        if task == PREDICTORS[0] and len(one.names) >= MIN_COMPUTED
    }
    columns = 3
    lines = -(-len(drawn) // columns)
    with matplotlib_defaults([name for one in drawn.values() for name in one.names]):
        figure = Figure(figsize=(3.2 * columns, 2.6 * lines), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes, (target, one) in zip(panels, drawn.items(), strict=False):
            axes.scatter(one.recall, one.gain, s=12)
            _name_points(axes, one)
            axes.set_title(target.recipe, fontsize=8)
            axes.set_xlabel("associative recall, %", fontsize=7)
            axes.set_ylabel(f"{metric_facts(target.metric).title}, gain over scaled-dot", fontsize=7)
            axes.tick_params(labelsize=6)
        for axes in panels[len(drawn) :]:
            axes.set_visible(False)
        return rendered(figure, "svg", "score against associative recall").decode("utf-8")


def _name_points(axes: Any, one: Correlation) -> None:
    """Write each name beside its point, towards the middle, above the name of a lower point that it would cover."""
    axes.margins(0.15)
    height = (max(one.gain) - min(one.gain) or 1) / 18
    last = {"left": float("-inf"), "right": float("-inf")}
    for y, x, name in sorted(zip(one.gain, one.recall, one.names, strict=True)):
        side = "right" if x > 50 else "left"
        last[side] = at = max(y, last[side] + height)
        axes.annotate(name, (x, at), xytext=(-4 if x > 50 else 4, -2), textcoords="offset points", ha=side, fontsize=5)
