"""Tests of rows read from saved scores, without a model."""

import itertools
from pathlib import Path

import pytest
from helpers import question_runs
from helpers.scored_runs import OUTPUTS, scored_run

from attnkit.nbce import question_sets
from attnkit.recipe.schema import EvalConfig
from attnkit.runs.layout import ScoredSplit
from attnkit.scoring.evaluation import evaluate
from attnkit.scoring.saved_scores import saved_rows


def test_saved_row_equals_the_evaluated_row(tmp_path: Path) -> None:
    run = scored_run(tmp_path, "base", OUTPUTS, ("bleu", "chrf"))
    (measured,) = evaluate(run, ["test"], EvalConfig(metrics=("bleu", "chrf")))
    (saved,) = saved_rows(run)
    assert saved.json() == measured.json()
    assert list(saved.scores) == ["bleu", "chrf"]
    assert saved.references == measured.references


def test_metrics_of_the_recipe_come_before_others(tmp_path: Path) -> None:
    run = scored_run(tmp_path, "base", OUTPUTS, ("ter", "chrf", "bleu"))
    assert run.recipe.eval.metrics == ("bleu",)
    assert list(saved_rows(run)[0].scores) == ["bleu", "ter", "chrf"]


def test_saved_answers_have_method_and_contexts(tmp_path: Path) -> None:
    run = question_runs.make_run(tmp_path)
    measured = question_sets.evaluate(run, ["test"], run.recipe.eval)
    saved = saved_rows(run)
    assert [row.json() for row in saved] == [row.json() for row in measured]
    methods = ("entropy", "mean", "concat", "none")
    assert {(row.method, row.contexts) for row in saved} == set(itertools.product(methods, (1, 2, 4)))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("test_2017", ScoredSplit("test_2017")),
        ("test.length-64", ScoredSplit("test", 64)),
        ("test.entropy,beta=0.5.16", ScoredSplit("test", None, "entropy,beta=0.5", 16)),
    ],
)
def test_scored_split_to_name_and_back(name: str, part: ScoredSplit) -> None:
    assert ScoredSplit.of(name) == part
    assert str(part) == name
