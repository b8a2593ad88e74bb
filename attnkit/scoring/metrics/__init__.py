"""Metrics of text, one family a module; `attnkit.recipe.metrics` declares each of them.

A score is a function of summed per-sentence statistics (n-gram counts, edits, F values), so one
table of statistics gives the corpus score and every bootstrap resample of it.  All scores are on
the 0-100 scale but perplexity (CIDEr-D, 100 times the number of its paper, reaches 1000), and each
carries a signature that says how it was computed.  Nothing is ever downloaded.
"""

from attnkit.scoring.metrics.answers import context_found
from attnkit.scoring.metrics.base import Score, Statistics, reducer
from attnkit.scoring.metrics.labels import label_scores
from attnkit.scoring.metrics.scoring import (
    CONTEXT,
    LABELS,
    TEACHER_FORCED,
    TEXT,
    check_available,
    check_scorable,
    expand,
    is_text,
    score,
)

__all__ = [
    "CONTEXT", "LABELS", "TEACHER_FORCED", "TEXT", "Score", "Statistics", "check_available",
    "check_scorable", "context_found", "expand", "is_text", "label_scores", "reducer", "score",
]  # fmt: skip
