"""What was saved is shown as `attnkit eval` shows it, without a model."""

from pathlib import Path

import pytest
from helpers import questioned
from helpers.scored import scored_run

from attnkit.nbce import question_sets
from attnkit.recipe.schema import EvalConfig
from attnkit.runs.layout import ScoredSplit
from attnkit.scoring.evaluation import evaluate
from attnkit.scoring.saved_scores import saved_rows

OUTPUTS = ["ein roter hund", "zwei katzen", "ein hund", "katzen", "eine katze"]


def test_texts_come_back_as_they_were_scored(tmp_path: Path) -> None:
    run = scored_run(tmp_path, "base", OUTPUTS, ("bleu", "chrf"))
    measured = evaluate(run, ["test"], EvalConfig(metrics=("bleu", "chrf")))
    (saved,) = saved_rows(run)
    assert saved.json() == measured[0].json()
    assert list(saved.scores) == ["bleu", "chrf"]
    assert saved.references == measured[0].references


def test_metrics_of_the_recipe_come_before_others(tmp_path: Path) -> None:
    run = scored_run(tmp_path, "base", OUTPUTS, ("ter", "chrf", "bleu"))
    assert run.recipe.eval.metrics == ("bleu",)
    assert list(saved_rows(run)[0].scores) == ["bleu", "ter", "chrf"]


def test_answers_come_back_with_method_and_contexts(tmp_path: Path) -> None:
    run = questioned.make_run(tmp_path)
    measured = question_sets.evaluate(run, ["test"], run.recipe.eval)
    saved = saved_rows(run)
    assert [row.json() for row in saved] == [row.json() for row in measured]
    assert {(one.method, one.contexts) for one in saved} == {
        (method, count) for method in ("entropy", "mean", "concat", "none") for count in (1, 2, 4)
    }


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("test_2017", ScoredSplit("test_2017")),
        ("test.length-64", ScoredSplit("test", 64)),
        ("test.entropy,beta=0.5.16", ScoredSplit("test", None, "entropy,beta=0.5", 16)),
    ],
)
def test_a_name_says_what_was_scored(name: str, part: ScoredSplit) -> None:
    assert ScoredSplit.of(name) == part
    assert str(part) == name
