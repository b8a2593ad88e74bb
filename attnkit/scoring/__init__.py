"""Scores of text, their significance, and comparisons of systems.

Start with `results.Comparison` (rows, differences, JSON), `evaluation.evaluate` (scores of a run) and
`significance.compare` (differences with intervals). Imports `search`, `runs` and the layers below them.
"""

from attnkit.scoring.comparison import side_by_side
from attnkit.scoring.metrics import (
    CONTEXT,
    LABELS,
    TEACHER_FORCED,
    TEXT,
    Score,
    check_available,
    check_known,
    check_scorable,
    context_found,
    expand,
    score,
)
from attnkit.scoring.metrics.tokenizers import TOKENIZERS
from attnkit.scoring.results import Comparison, ScoreRow
from attnkit.scoring.significance import Difference, compare, corrected

__all__ = [
    "CONTEXT",
    "LABELS",
    "TEACHER_FORCED",
    "TEXT",
    "TOKENIZERS",
    "Comparison",
    "Difference",
    "Score",
    "ScoreRow",
    "check_available",
    "check_known",
    "check_scorable",
    "compare",
    "context_found",
    "corrected",
    "expand",
    "score",
    "side_by_side",
]
