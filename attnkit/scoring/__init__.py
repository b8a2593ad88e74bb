"""Scores of text, their significance, and systems side by side."""

from attnkit.scoring.comparison import Entry, side_by_side
from attnkit.scoring.metrics import (
    CONTEXT,
    ROUGE,
    TEACHER_FORCED,
    TEXT,
    TOKENIZERS,
    Score,
    context_found,
    expand,
    score,
)
from attnkit.scoring.output_warnings import warnings
from attnkit.scoring.significance import Comparison, compare, corrected

__all__ = [
    "CONTEXT", "ROUGE", "TEACHER_FORCED", "TEXT", "TOKENIZERS", "Comparison", "Entry", "Score",
    "compare", "context_found", "corrected", "expand", "score", "side_by_side", "warnings",
]  # fmt: skip
