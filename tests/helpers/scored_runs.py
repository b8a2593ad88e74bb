"""Finished runs of tiny models with given outputs, scored."""

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from attnkit.recipe.schema import EvalConfig
from attnkit.runs import Run
from attnkit.scoring import evaluation
from helpers.trained import make_run

OUTPUTS = ("ein roter hund", "zwei katzen", "ein hund und eine katze", "katzen", "eine katze")
"""Outputs for `helpers.trained.ROWS`, of which the last is wrong."""


def scored_run(folder: Path, variant: str, outputs: Sequence[str], metrics: Sequence[str] = ("chrf", "bleu")) -> Run:
    """Create a run below folder/runs/toy with these outputs for `helpers.trained.ROWS`."""
    run = make_run(folder, variant)
    answers = [[(text, 0.0)] for text in outputs]
    with patch.object(evaluation, "answer_lines", lambda *_, **__: iter(answers)):
        evaluation.evaluate(run, ["test"], EvalConfig(metrics=tuple(metrics)))
    return run
