"""Tests of which runs are one system, its name, and which systems are comparable."""

from typing import Any

import numpy as np
import pytest
from helpers.score_rows import score_row

from attnkit.recipe.schema import EvalConfig, SearchConfig
from attnkit.recipe.search_settings import COMMON, PER_METHOD, effective, search_text
from attnkit.runs.json_files import RecordedChange, StoredContexts, StoredSearch
from attnkit.scoring import Score, ScoreRow, side_by_side
from attnkit.scoring.comparison import named, reasons
from attnkit.scoring.results import Budget

VALUES = np.stack([np.random.default_rng(0).random(60), np.ones(60)], 1)
BEAM = StoredSearch(beam=4, max_length=9)
GREEDY = BEAM.model_copy(update={"method": "greedy"})

CHANGE = RecordedChange(step=60, key="train.lr", old="1", new="2")


def entry(variant: str = "a", seed: int = 1, gain: float = 0, **more: Any) -> ScoreRow:
    """Return the row of a run of recipe r; `steps` is its setting and its budget."""
    steps, signature = more.pop("steps", 650), more.pop("signature", "s")
    settings = {"train.steps": str(steps), "train.lr": "0.1"} | more.pop("settings", {})
    values = VALUES + np.array([gain, 0])
    scores = {name: Score.of(name, values, signature) for name in ("exact-match", "accuracy")}
    defaults = {
        "seed": seed,
        "references": "same",
        "search": BEAM,
        "run": f"runs/r/{variant}/seed-{seed}",
        "source": "x",
        "budget": Budget(steps, 1024, 1),
        "training_data": "t",
        "settings": settings,
    }
    return score_row(variant, scores, **(defaults | more))


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        ([entry(seed=1), entry(seed=2)], ["a", "a"]),
        ([entry(), entry(seed=2, steps=120), entry(seed=3)], ["a (steps=650)", "a (steps=120)", "a (steps=650)"]),
        ([entry("a"), entry("b", steps=120)], ["a", "b"]),
        ([entry(), entry(run="b/r/a/seed-1")], ["a (runs/r/a)", "a (b/r/a)"]),
        (
            [entry(), entry(seed=2, run="runs/r/a/seed-2"), entry(run="b/seed-1")],
            ["a (runs/r/a)", "a (runs/r/a)", "a (b)"],
        ),
        (
            [entry(search=BEAM), entry(search=GREEDY)],
            ["a (beam 4, length penalty 1.0, max_length 9)", "a (greedy, max_length 9)"],
        ),
        ([entry(), entry(changes=(CHANGE,))], ["a", "a (changed: train.lr at step 60)"]),
        ([entry(settings={f"k.{i}": "1" for i in range(5)}), entry()], ["a (0=1, 1=1, 2=1, 2 more)", "a"]),
    ],
)
def test_seeds_of_equal_recipes_are_one_system(entries: list[ScoreRow], names: list[str]) -> None:
    assert [row.name for row in named(entries)] == names


def test_names_have_the_folder_where_settings_are_too_long() -> None:
    many = [entry(settings={f"k.{i}": "1" for i in range(4)} | {"k.9": str(v)}, run=f"x{v}/seed-1") for v in (1, 2)]
    names = [row.name for row in named([*many, entry()])]
    assert len({*names}) == 3
    assert names[1].endswith("(x2)")


def test_two_budgets_are_two_rows() -> None:
    """Runs of 650 and 120 steps were one row, `43.24 +- 55.58, seeds: 1`."""
    result = side_by_side([entry(steps=650), entry(steps=120, gain=-0.3)], {"r": "a"}, EvalConfig(bootstrap=50))
    assert [row.name for row in result.rows] == ["a (steps=650)", "a (steps=120)"]
    record = result.json()["comparisons"][0]
    assert (record["variant"], record["system"]) == ("a", "a (steps=120)")
    assert (record["baseline"], record["baseline_system"]) == ("a", "a (steps=650)")
    assert record["not_comparable"] == ["budget"]
    assert record["difference"] < 0
    assert (record["p"], record["p_corrected"], record["interval"]) == (None, None, None)
    assert result.best == ()


@pytest.mark.parametrize("chosen", ["b", "b/seed-1"])
def test_baseline_may_be_a_variant_or_a_run(chosen: str) -> None:
    entries = [entry("a"), entry("b", run="b/seed-1")]
    assert side_by_side(entries, {"r": chosen}, EvalConfig(bootstrap=0)).baseline == "b"


@pytest.mark.parametrize(
    ("more", "metric", "expected"),
    [
        ({}, "exact-match", []),
        ({"search": GREEDY}, "exact-match", ["search"]),
        ({"search": GREEDY}, "accuracy", []),
        ({"search": BEAM.model_copy(update={"batch_tokens": 9, "temperature": 2.0})}, "exact-match", []),
        ({"references": "other"}, "exact-match", ["data"]),
        ({"source": "other"}, "exact-match", ["data"]),
        ({"signature": "t"}, "exact-match", ["metric"]),
        ({"training_data": "other"}, "exact-match", ["training data"]),
        ({"budget": None, "search": None, "source": None}, "exact-match", []),
        ({"steps": 9, "search": GREEDY}, "exact-match", ["search", "budget"]),
    ],
)
def test_reasons_why_scores_are_not_comparable(more: dict[str, Any], metric: str, expected: list[str]) -> None:
    assert reasons(entry(), entry("b", **more), metric) == expected


def test_other_data_is_not_comparable_without_its_own_baseline() -> None:
    old = [entry("a"), entry("b")]
    new = [entry("b", references="o", run="x/r/b/seed-1")]
    result = side_by_side([*old, *new], {"r": "a"}, EvalConfig(bootstrap=20))
    marked = {c["system"]: c for c in result.json()["comparisons"] if c["metric"] == "exact-match"}
    assert marked["b (x/r/b)"]["not_comparable"] == ["data"]
    assert marked["b (x/r/b)"]["difference"] is None
    both = [*old, entry("a", references="o", run="x/r/a/seed-1"), *new]
    result = side_by_side(both, {"r": "a"}, EvalConfig(bootstrap=20))
    bases = {c["system"]: c["baseline_system"] for c in result.json()["comparisons"]}
    assert bases == {"b (runs/r/b)": "a (runs/r/a)", "b (x/r/b)": "a (x/r/a)"}


def test_every_setting_of_search_is_classified() -> None:
    without = {"method", "n_best", "batch_tokens"}  # they do not change the output
    known = without | {*COMMON} | {name for names in PER_METHOD.values() for name in names}
    assert known == {*SearchConfig.model_fields}


def test_search_as_text_and_in_file_names() -> None:
    search = StoredSearch(method="beam", beam=4, min_length=2)
    assert search_text(search) == "beam 4, length penalty 1.0, max_length 100, min_length 2"
    assert search_text(SearchConfig(method="greedy")) == "greedy, max_length 100"
    assert search.name == "beam-4-ccf053a7"  # as in runs of earlier versions
    assert search.name == search.model_copy(update={"batch_tokens": 1, "top_p": 0.5}).name
    assert search.name != search.model_copy(update={"length_penalty": 0.5}).name
    assert search.name != search.model_copy(update={"contexts": StoredContexts(method="mean")}).name
    assert "temperature" in effective(SearchConfig(method="sample"))
