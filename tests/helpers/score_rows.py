"""Rows of scores and differences between them, with chosen values."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from attnkit.scoring import Comparison, Difference, Score, ScoreRow
from attnkit.scoring.results import System, SystemDifference, TrainingCost

SYSTEM, COST = ({one.name for one in fields(kind)} for kind in (System, TrainingCost))


def score_row(variant: str, scores: Mapping[str, Score] | None = None, **more: Any) -> ScoreRow:
    """A row of recipe r and seed 1 on test; any field of a row, a system, or `train_` of a cost."""
    row = ScoreRow(System("r", variant, 1), "test", scores or {}, 1000, "same", name=variant)
    return with_values(row, **more)


def with_values(row: ScoreRow, **more: Any) -> ScoreRow:
    """The same with other values of fields, those of its system and costs among them."""
    cost = {
        name[6:]: more.pop(name)
        for name in [*more]
        if name.removeprefix("train_") in COST and name.startswith("train_")
    }
    of_system = {name: more.pop(name) for name in [*more] if name in SYSTEM}
    system = replace(row.system, cost=replace(row.system.cost, **cost), **of_system)
    return replace(row, **{"system": system, **more})


def fixed_score(metric: str, value: float, signature: str) -> Score:
    """A score of this value, whatever its statistics."""
    return Score(value, signature, metric, np.ones((1, 2)))


def fixed_difference(value: float, p: float, corrected: float, **more: Any) -> Difference:
    """A tested difference of two systems with two seeds each, a point of which is sure."""
    plain = Difference(value, value - 1, value + 1, p, corrected, (2, 2), 1.0, False, "higher", 2)
    return replace(plain, **more)


def system_difference(
    baseline: ScoreRow, row: ScoreRow, metric: str, tested: Difference | None, *why: str
) -> SystemDifference:
    """A row against its baseline."""
    value = tested.value if tested else None
    return SystemDifference(row, baseline, metric, value, tested, why, (2, 2), 1000)


def compare_rows(*rows: ScoreRow, **more: Any) -> Comparison:
    """Rows side by side."""
    return Comparison(rows, **more)
