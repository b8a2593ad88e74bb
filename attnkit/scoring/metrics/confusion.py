"""Metrics of a confusion matrix: counts of right labels by the labels given."""

import math
from collections.abc import Sequence


def matrix(sums: Sequence[float]) -> list[list[float]]:
    """Rows: the K right labels; columns: the labels given, and one for anything else."""
    labels = math.isqrt(len(sums))
    return [list(sums[start : start + labels + 1]) for start in range(0, len(sums), labels + 1)]


def matthews(sums: Sequence[float]) -> float:
    """R_K of Gorodkin 2004 ("Comparing two K-category assignments by a K-category correlation
    coefficient"), -1 to 1; of two labels the Matthews correlation.  0 where one side is constant.
    """
    counts = matrix(sums)
    right = [sum(row) for row in counts] + [0.0]
    given: list[float] = [sum(column) for column in zip(*counts, strict=True)]
    total, hits = sum(right), sum(row[at] for at, row in enumerate(counts))
    covariance: float = hits * total - sum(r * g for r, g in zip(right, given, strict=True))
    spread: float = math.prod(total**2 - sum(n**2 for n in side) for side in (right, given))
    return covariance / math.sqrt(spread) if spread else 0.0


def f1(sums: Sequence[float]) -> float:
    """F1 of the last of two labels, or the mean over more; 0 to 1.  A label without any has 0."""
    counts = matrix(sums)
    given: list[float] = [sum(column) for column in zip(*counts, strict=True)]
    each = [2 * row[at] / max(1, sum(row) + given[at]) for at, row in enumerate(counts)]
    return each[-1] if len(each) == 2 else sum(each) / len(each)
