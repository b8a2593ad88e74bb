"""Metrics of text, one module per family; `attnkit.recipe.metrics` declares each metric.

A score is a function of summed per-sentence statistics (n-gram counts, edits, F values), so one table of statistics
gives the corpus score and the score of each bootstrap resample. All scores except perplexity are on a 0-100 scale
(CIDEr-D, 100 times the value of its paper, reaches 1000). Each has a signature that describes its computation. Nothing
is ever downloaded.

A family has a function `scores`, and `check` if a dependency of a metric may be missing.
"""

from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from types import ModuleType

from attnkit.errors import DataError, UsageError
from attnkit.recipe.metrics import METRICS, ROUGE, base_metric, is_known, metric_refusal, metrics_that_read
from attnkit.recipe.schema import EvalConfig, Recipe
from attnkit.scoring.metrics.answers import context_found
from attnkit.scoring.metrics.base import References, Score, Statistics, reducer
from attnkit.scoring.metrics.labels import label_scores
from attnkit.scoring.metrics.tokenizers import check_tokenizer
from attnkit.text import hint, quoted

__all__ = [
    "CONTEXT",
    "LABELS",
    "TEACHER_FORCED",
    "TEXT",
    "Score",
    "Statistics",
    "check_available",
    "check_known",
    "check_scorable",
    "context_found",
    "expand",
    "is_text",
    "label_scores",
    "reducer",
    "score",
]

TEXT = metrics_that_read("outputs")
"""Metrics of output text."""
CONTEXT = metrics_that_read("contexts")
"""Metrics of the selected context in question answering."""
LABELS = metrics_that_read("labels")
"""Metrics of the selected label in classification."""
TEACHER_FORCED = metrics_that_read("probabilities")
"""Metrics of the model's probabilities given the reference."""


def is_text(name: str) -> bool:
    """Return whether a metric reads output text, as metrics of plug-ins do."""
    return METRICS[name].reads == "outputs"


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Return names without duplicates, `rouge` as the four ROUGE metrics. Raises UsageError for an unknown name."""
    out: list[str] = []
    for name in names:
        if name != "rouge" and not is_known(name):
            suggestion = hint(name, (*METRICS, "rouge"))
            raise UsageError(f"unknown metric {quoted(name)}: {suggestion} (load your own with --plugin FILE)")
        out.extend(ROUGE if name == "rouge" else (name,))
    return tuple(dict.fromkeys(out))


def check_known(names: Sequence[str], task: str, known: Sequence[str]) -> None:
    """Raise UsageError unless all metrics are among the `known` metrics of a task."""
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"metrics: {metric_refusal(unknown[0], task, known)}")


def check_available(metrics: Sequence[str], eval: EvalConfig) -> None:
    """Raise an error if a metric cannot be computed, before the work whose results it scores.

    Raises:
        UnavailableError: a metric or tokenizer needs a package or a file that is missing.
        MissingInputError: there is no file `eval.vectors`.
        DataError: the file `eval.vectors` is malformed.
        UsageError: unknown metric or tokenizer, or no word vectors for a metric that needs them.
    """
    for family, names in _by_family(metrics).items():
        if any(METRICS[name].cut_by == "tokenize" for name in names):
            check_tokenizer(eval.tokenizers[0])
        if hasattr(family, "check"):
            family.check(names, eval)


def check_scorable(recipe: Recipe) -> None:
    """Raise an error, as `check_available`, unless the outputs of a recipe can be scored."""
    monitor = {recipe.train.monitor} - {"loss"}
    check_available((*recipe.eval.metrics, *monitor), recipe.eval)


def score(
    metrics: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    eval: EvalConfig,
    sources: Sequence[str] | None = None,
) -> dict[str, Score]:
    """Score hypotheses against the references of each line (one or more, their number may vary).

    Only metrics of output text are computed. BLEU by further tokenizers follows BLEU, as bleu-intl. Families whose
    `scores` has a parameter `sources` get the source texts, or None. Time: about 0.3 s for 1,000 sentences, TER
    several times that.

    Raises:
        DataError: the numbers of lines differ, or a line has no reference.
        UnavailableError, MissingInputError, UsageError: as `check_available`.
    """
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses)} hypotheses but {len(references)} lines of references: both need one line per sentence"
        )
    if not hypotheses:
        raise DataError("nothing to score: there are no lines")
    if empty := [number for number, line in enumerate(references, 1) if not line]:
        raise DataError(f"line {empty[0]} has no reference: give at least one for each line")
    scores: dict[str, Score] = {}
    for family, names in _by_family(metrics).items():
        reads_sources = "sources" in signature(family.scores).parameters
        options = {"sources": sources} if reads_sources else {}
        scores |= family.scores(names, hypotheses, references, eval, **options)
    order = [name for metric in expand(metrics) for name in scores if base_metric(name) == metric]
    return {name: scores[name] for name in order}


def _by_family(metrics: Sequence[str]) -> dict[ModuleType, list[str]]:
    """Return the metrics of output text by the module that computes them."""
    out: dict[ModuleType, list[str]] = {}
    for name in expand(metrics):
        if is_text(name):
            out.setdefault(import_module(f"{__name__}.{METRICS[name].family}"), []).append(name)
    return out
