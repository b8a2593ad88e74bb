"""Averages over tasks: who takes part, and a test that knows the tasks apart."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.score_rows import score_row

from attnkit.errors import UsageError
from attnkit.scoring import Score, ScoreRow
from attnkit.scoring.averages import averages
from attnkit.scoring.results import Budget
from attnkit.scoring.significance import PairedTest
from attnkit.show.comparison_tables import average_table

TASKS = {"t/a": 120, "t/b": 300}


def entry(task: str, variant: str, gain: float, seed: int = 1, **more: Any) -> ScoreRow:
    """A system that is right in about 60 + gain percent of the lines of a task."""
    draw = np.random.default_rng([len(task), *map(ord, task + variant), seed])
    same = np.random.default_rng(list(map(ord, task))).random(TASKS[task])
    right = same + draw.normal(0, 0.1, TASKS[task]) < 0.6 + gain / 100
    score = Score.mean("label-accuracy", right.astype(float).tolist(), "s")
    more |= {"recipe": task, "seed": seed, "run": variant, "references": task}
    return score_row(variant, {"label-accuracy": score}, **more)


def system(variant: str, gain: float, seeds: tuple[int, ...] = (1,)) -> list[ScoreRow]:
    return [entry(task, variant, gain, seed) for task in TASKS for seed in seeds]


BASE = {"t/a": "base", "t/b": "base"}


def test_a_row_is_the_mean_over_tasks_and_is_tested_against_the_baseline() -> None:
    entries = system("base", 0) + system("better", 15) + system("same", 0)
    (found,) = averages(entries, BASE, resamples=300)
    rows = {row["variant"]: row for row in found.json()["rows"]}
    for name, row in rows.items():
        scores = [e.scores["label-accuracy"].value for e in entries if e.variant == name]
        assert row["average"] == pytest.approx(np.mean(scores))
    assert rows["better"]["p_corrected"] < 0.05 < rows["same"]["p_corrected"]
    low, high = rows["better"]["interval"]
    assert 0 < low < rows["better"]["difference"] < high
    assert rows["base"]["difference"] is None


def test_the_spread_of_an_average_is_that_of_independent_tasks() -> None:
    """Variances of means of independent samples add; drawing one task alone is wider."""
    systems = [[entry(task, name, 0) for name in ("base", "x")] for task in TASKS]
    tests = [
        PairedTest([[e.scores["label-accuracy"]] for e in pair], resamples=4000, seed=place)
        for place, pair in enumerate(systems)
    ]
    each = [(test.drawn[1] - test.drawn[0]).var() for test in tests]
    both = PairedTest.of_average(tests)
    assert (both.drawn[1] - both.drawn[0]).var() == pytest.approx(sum(each) / 4, rel=0.1)
    assert both.values[0][0] == pytest.approx(np.mean([test.values[0][0] for test in tests]))
    assert both.sentences == sum(TASKS.values())


def test_seeds_that_all_tasks_have_are_averaged_and_spread() -> None:
    entries = system("base", 0, (1, 2, 3)) + system("x", 0, (1, 2))
    entries.append(entry("t/a", "x", 0, 9))  # which t/b lacks
    (found,) = averages(entries, BASE, resamples=100)
    base, other = found.json()["rows"]
    assert (base["seeds"], other["seeds"]) == ([1, 2, 3], [1, 2])
    assert base["sd"] > 0
    assert other["seed_degrees"] == 3


def test_a_variant_without_a_task_is_left_out_and_named() -> None:
    entries = [*system("base", 0), entry("t/a", "half", 0), entry("t/a", "odd", 0, 1),
               entry("t/b", "odd", 0, 2)]  # fmt: skip
    (found,) = averages(entries, BASE, resamples=10)
    assert [row["variant"] for row in found.json()["rows"]] == ["base"]
    assert found.left_out == {"half": "no run of t/b", "odd": "no seed that all recipes have"}
    notes = "\n".join(average_table(found).notes)
    assert "half is left out: no run of t/b" in notes


def test_another_budget_is_not_tested() -> None:
    entries = system("base", 0) + [
        entry(task, "x", 5, budget=Budget(9, 1, 1)) for task in TASKS
    ]  # fmt: skip
    entries[:2] = [entry(task, "base", 0, budget=Budget(1, 1, 1)) for task in TASKS]
    (found,) = averages(entries, BASE, resamples=50)
    row = found.json()["rows"][1]
    assert row["not_comparable"] == ["budget"]
    assert row["p"] is None
    assert row["difference"] is not None
    assert "(" in average_table(found).rows[1][-1].text


def test_a_metric_of_the_whole_output_is_not_tested() -> None:
    """Distinct n-grams of a resample are too few: its sentences are drawn several times."""
    scores = {"distinct-2": Score.of("distinct-2", np.array([[3.0, 4.0], [2.0, 4.0]]), "s")}
    entries = [replace(one, scores=scores) for one in system("base", 0) + system("x", 5)]
    (found,) = averages(entries, BASE, resamples=50)
    assert [row["p"] for row in found.json()["rows"]] == [None, None]
    assert found.json()["rows"][1]["difference"] == 0


def test_one_recipe_is_no_average() -> None:
    with pytest.raises(UsageError, match="two recipes or more"):
        averages([entry("t/a", "base", 0)], BASE)


def test_the_table_has_a_column_for_each_task() -> None:
    (found,) = averages(system("base", 0) + system("x", 9), BASE, resamples=50)
    table = average_table(found)
    assert [column.title for column in table.columns] == [
        "variant", "a", "b", "average", "difference",
    ]  # fmt: skip
    best = [[cell.best for cell in row] for row in table.rows]
    assert best[1][1:4] == [True, True, True]
    assert not any(best[0])
