"""Scores of text, their significance, and systems side by side."""

from attnkit.scoring.checks import warnings
from attnkit.scoring.comparison import Entry, side_by_side
from attnkit.scoring.metrics import (
    FORCED,
    ROUGE,
    TEXT,
    TOKENIZERS,
    Score,
    expand,
    score,
)
from attnkit.scoring.significance import Comparison, compare, corrected

__all__ = [
    "FORCED", "ROUGE", "TEXT", "TOKENIZERS", "Comparison", "Entry", "Score",
    "compare", "corrected", "expand", "score", "side_by_side", "warnings",
]  # fmt: skip
