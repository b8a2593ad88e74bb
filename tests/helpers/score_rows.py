"""Rows of scores and differences between them, with given values."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from attnkit.scoring import Comparison, Difference, Score, ScoreRow
from attnkit.scoring.results import System, SystemDifference, TrainingCost

SYSTEM, COST = ({field.name for field in fields(kind)} for kind in (System, TrainingCost))


def score_row(variant: str, scores: Mapping[str, Score] | None = None, **more: Any) -> ScoreRow:
    """Return a row of recipe r and seed 1 on test; see `with_values` for `more`."""
    row = ScoreRow(System("r", variant, 1), "test", scores or {}, 1000, "same", name=variant)
    return with_values(row, **more)


def with_values(row: ScoreRow, **more: Any) -> ScoreRow:
    """Change fields of a row, of its system, or, with the prefix `train_`, of its training cost."""
    cost = {
        name[6:]: more.pop(name)
        for name in [*more]
        if name.removeprefix("train_") in COST and name.startswith("train_")
    }
    of_system = {name: more.pop(name) for name in [*more] if name in SYSTEM}
    system = replace(row.system, cost=replace(row.system.cost, **cost), **of_system)
    return replace(row, **{"system": system, **more})


def fixed_score(metric: str, value: float, signature: str) -> Score:
    """Return a score with this value and meaningless statistics."""
    return Score(value, signature, metric, np.ones((1, 2)))


def fixed_difference(value: float, p: float, corrected: float, **more: Any) -> Difference:
    """Return a tested difference of two systems with two seeds each, and an interval of one point to either side."""
    plain = Difference(value, value - 1, value + 1, p, corrected, (2, 2), 1.0, False, "higher", 2)
    return replace(plain, **more)


def system_difference(
    baseline: ScoreRow, row: ScoreRow, metric: str, tested: Difference | None, *why: str
) -> SystemDifference:
    """Return the difference of a row from its baseline."""
    return SystemDifference(row, baseline, metric, tested.value if tested else None, tested, why, (2, 2), 1000)


def compare_rows(*rows: ScoreRow, **more: Any) -> Comparison:
    """Return a comparison of rows."""
    return Comparison(rows, **more)
