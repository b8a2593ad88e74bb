"""Scores: functions of summed per-sentence statistics, with signatures that describe the computation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from attnkit import __version__
from attnkit.recipe.metrics import METRICS, PLUGGED, base_metric, metric_facts
from attnkit.runs.json_files import StoredMetric
from attnkit.scoring.metrics.tokenizers import sacrebleu_metric

Statistics = np.ndarray[tuple[int, int], np.dtype[np.float64]]
References = Sequence[Sequence[str]]
"""References of each line, one or more."""
VERSION = f"version:attnkit-{__version__}"
"""End of the signatures of attnkit's own metrics."""


@dataclass(frozen=True)
class Score:
    """One metric of one system on one test set."""

    value: float
    """0-100, or the perplexity; Matthews correlation from -100."""
    signature: str
    """Description of the computation."""
    metric: str = field(repr=False)
    statistics: Statistics = field(repr=False, compare=False)
    """[sentences, k], for the paired bootstrap; the score is a function of their sum."""

    @classmethod
    def of(cls, metric: str, statistics: Statistics, signature: str) -> "Score":
        """Return the score of statistics [sentences, k]."""
        return cls(reducer(metric)(statistics.sum(0).tolist()), signature, metric, statistics)

    @classmethod
    def mean(cls, metric: str, values: Sequence[float], signature: str) -> "Score":
        """Return 100 times the mean of one value per line."""
        return cls.of(metric, np.array([[value, 1.0] for value in values]), signature)

    @property
    def resampled(self) -> bool:
        """Whether the paired bootstrap applies."""
        return metric_facts(self.metric).resampled

    @property
    def finite(self) -> bool:
        """Whether the value is finite."""
        return math.isfinite(self.value)

    @property
    def stored(self) -> StoredMetric:
        """Entry of scores.json; a value that is not finite becomes null."""
        return StoredMetric(score=self.value if self.finite else None, signature=self.signature)


@cache
def reducer(metric: str) -> Callable[[list[float]], float]:
    """Return the function that computes the score of a metric from summed statistics."""
    name = base_metric(metric)
    if METRICS[name].family == PLUGGED:
        return lambda sums: sums[0] / max(sums[1], 1)
    if METRICS[name].family == "sacrebleu_scores" and name != "length-ratio":
        compute = sacrebleu_metric(name)._compute_score_from_stats
        return lambda sums: float(compute(sums).score)
    if name in ("perplexity", "word-perplexity"):
        return lambda sums: math.exp(min(sums[0] / max(sums[1], 1), 700))  # exp(710) overflows
    if name == "calibration-error":
        return lambda sums: 100 * sum(map(abs, sums[:-1])) / max(sums[-1], 1)
    if name in ("matthews", "f1"):
        measure = matthews if name == "matthews" else f1
        return lambda sums: 100 * measure(sums)
    return lambda sums: 100 * sums[0] / max(sums[1], 1)


def reference_count(references: References) -> str:
    """Return the nrefs of a signature: the number of references per line, or var."""
    counts = {len(line) for line in references}
    return str(counts.pop()) if len(counts) == 1 else "var"


def _confusion_matrix(sums: Sequence[float]) -> list[list[float]]:
    """Return the confusion matrix: K rows of true labels, K + 1 columns of answers, the last one for non-labels."""
    labels = math.isqrt(len(sums))
    return [list(sums[start : start + labels + 1]) for start in range(0, len(sums), labels + 1)]


def matthews(sums: Sequence[float]) -> float:
    """Return R_K, -1 to 1; for two labels the Matthews correlation. 0 if labels or answers are constant.

    Source: Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation coefficient".
    """
    counts = _confusion_matrix(sums)
    true = [sum(row) for row in counts] + [0.0]
    predicted: list[float] = [sum(column) for column in zip(*counts, strict=True)]
    total, hits = sum(true), sum(row[i] for i, row in enumerate(counts))
    covariance: float = hits * total - sum(t * p for t, p in zip(true, predicted, strict=True))
    variances: float = math.prod(total**2 - sum(n**2 for n in side) for side in (true, predicted))
    return covariance / math.sqrt(variances) if variances else 0.0


def f1(sums: Sequence[float]) -> float:
    """Return F1 of the last of two labels, or the mean over more labels, 0 to 1; 0 for a label that never occurs."""
    counts = _confusion_matrix(sums)
    predicted: list[float] = [sum(column) for column in zip(*counts, strict=True)]
    values = [2 * row[i] / max(1, sum(row) + predicted[i]) for i, row in enumerate(counts)]
    return values[-1] if len(values) == 2 else sum(values) / len(values)
