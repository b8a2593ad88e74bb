"""Tests of the comparison of systems: baselines, seeds, verdicts, and the group inseparable from the best."""

from typing import Any

import numpy as np
import pytest
from helpers.score_rows import score_row

from attnkit.recipe.published import Published
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import Comparison, Score, ScoreRow, side_by_side
from attnkit.scoring.comparison import first_baselines
from attnkit.scoring.results import PublishedFigures
from attnkit.show.comparison_tables import comparison_table

LINES = np.random.default_rng(0).random(200)


def entry(variant: str, gain: float, seed: int = 1, **more: Any) -> ScoreRow:
    """Return a row whose score is 50 + `gain` points, with noise that depends on its name and seed."""
    noise = more.pop("noise", sum(map(ord, variant)) + seed)
    metric, signature = more.pop("metric", "exact-match"), more.pop("signature", "s")
    draw = np.random.default_rng(noise)
    values = LINES + gain / 100 + draw.normal(0, 0.01, LINES.size)
    score = Score.of(metric, np.stack([values, np.ones_like(values)], 1), signature)
    return score_row(variant, {metric: score}, seed=seed, run=variant, **more)


def inseparable(result: Comparison) -> set[str]:
    """Return the variants that are inseparable from the best, by the only metric."""
    (best,) = result.best
    return {row.variant for row in best.inseparable}


def test_rows_not_significantly_worse_than_the_best_are_inseparable() -> None:
    entries = [entry("base", 0), entry("near", 3), entry("best", 3), entry("far", -5)]
    result = side_by_side(entries, {"r": "base"}, EvalConfig(bootstrap=200))
    (best,) = result.json()["best"]
    assert (best["split"], best["metric"], best["variant"]) == ("test", "exact-match", "best")
    assert inseparable(result) == {"best", "near"}
    for other in best["others"]:
        assert other["separable"] == (other["p_corrected"] < 0.05) != other["level"]
        assert other["difference"] < 0
        assert other["p"] <= other["p_corrected"]


def test_best_baseline_is_inseparable_from_rows_without_difference() -> None:
    entries = [entry("base", 3), entry("near", 3), entry("far", -5)]
    result = side_by_side(entries, {"r": "base"}, EvalConfig(bootstrap=200))
    expected = {"base", *(c["variant"] for c in result.json()["comparisons"] if c["p_corrected"] >= 0.05)}
    assert inseparable(result) == expected == {"base", "near"}


def test_lowest_score_is_best_where_lower_is_better() -> None:
    entries = [entry("a", 0, metric="ter"), entry("b", -9, metric="ter")]
    assert side_by_side(entries, {"r": "a"}, EvalConfig(bootstrap=50)).best[0].row.variant == "b"


def test_identical_systems_are_inseparable_with_p_1() -> None:
    entries = [entry(name, 0, noise=1) for name in "abc"]
    result = side_by_side(entries, {"r": "a"}, EvalConfig(bootstrap=50))
    assert inseparable(result) == {"a", "b", "c"}
    assert {record["p"] for record in result.json()["comparisons"]} == {1.0}


def test_seeds_of_a_variant_are_one_system_whose_spread_counts() -> None:
    entries = [
        entry(name, gain + move, seed)
        for name, gain in (("base", 0.0), ("other", 1.0))
        for seed, move in ((1, -2.0), (2, 0.0), (3, 2.0))
    ]
    alone = side_by_side([entries[1], entries[4]], {"r": "base"}, EvalConfig(bootstrap=200))
    together = side_by_side(entries, {"r": "base"}, EvalConfig(bootstrap=200))
    (one_seed,), (three_seeds,) = (result.json()["comparisons"] for result in (alone, together))
    assert one_seed["p"] < 0.01 < 0.2 < three_seeds["p"]
    assert (one_seed["seed_degrees"], three_seeds["seed_degrees"]) == (0, 4)
    assert inseparable(together) == {"base", "other"}


def test_comparisons_have_interval_seeds_and_verdict() -> None:
    entries = [entry("base", 0, seed) for seed in (1, 2, 3)]
    entries += [entry("far", 9, seed) for seed in (1, 2)] + [entry("near", 0.1)]
    result = side_by_side(entries, {"r": "base"}, EvalConfig(bootstrap=200))
    far, near = result.json()["comparisons"]
    assert far["low"] <= far["difference"] <= far["high"]
    assert far["interval"] == [far["low"], far["high"]]
    assert (far["seeds"], far["verdict"], far["provisional"]) == ([2, 3], "better", False)
    assert (near["seeds"], near["provisional"], near["margin"]) == ([1, 3], True, 1.0)
    assert near["verdict"] == "level"
    strict = side_by_side(entries, {"r": "base"}, EvalConfig(bootstrap=200, margin=0.01))
    assert strict.json()["comparisons"][1]["verdict"] == "undecided"
    table = comparison_table(result)
    assert "provisional: near: one of the two rows has one seed" in "\n".join(table.notes)
    assert table.rows[2][2].text.endswith(" level")
    assert [row[3].text for row in table.rows] == ["3", "2", "1"]


def test_seeds_without_the_metric_are_left_out() -> None:
    entries = [entry("base", 0, seed) for seed in (1, 2)]
    entries += [entry("x", 5, seed) for seed in (1, 2)] + [entry("x", 50, 3, metric="ter")]
    result = side_by_side(entries, {"r": "base"}, EvalConfig(bootstrap=100))
    (record,) = [c for c in result.json()["comparisons"] if c["metric"] == "exact-match"]
    assert record["seeds"] == [2, 2]
    assert record["difference"] == pytest.approx(5, abs=1)


def test_scores_with_another_signature_are_not_compared() -> None:
    entries = [entry("base", 0), entry("near", 0.1), entry("other", 9, signature="t")]
    result = side_by_side(entries, {"r": "base"}, EvalConfig(bootstrap=50))
    by_name = {record["variant"]: record for record in result.json()["comparisons"]}
    assert (by_name["other"]["difference"], by_name["other"]["p"]) == (None, None)
    assert by_name["near"]["p"] is not None
    assert "other" not in inseparable(result)


@pytest.mark.parametrize("baselines", [{}, {"r": "not trained"}])
def test_best_is_found_without_a_baseline(baselines: dict[Any, str]) -> None:
    result = side_by_side([entry("a", 0), entry("b", 9)], baselines, EvalConfig(bootstrap=50))
    assert (result.baseline, result.differences) == (None, ())
    assert inseparable(result) == {"b"}


def test_baseline_is_the_chosen_variant_or_the_first() -> None:
    entries = [entry("a", 0), entry("b", 9)]
    assert first_baselines(entries) == {"r": "a"}
    assert first_baselines(entries, "b") == {"r": "b"}
    assert first_baselines(entries, {"r": "b", "other": "x"}) == {"r": "b"}
    assert side_by_side(entries, first_baselines(entries, "b")).baseline == "b"


def test_without_resamples_differences_have_no_p_value() -> None:
    result = side_by_side([entry("a", 0), entry("b", 9)], {"r": "a"}, EvalConfig(bootstrap=0))
    (record,) = result.json()["comparisons"]
    assert record["difference"] == pytest.approx(9, abs=1)
    assert (record["p"], record["p_corrected"], record["interval"]) == (None, None, None)
    assert result.best == ()


def test_single_system_is_not_compared() -> None:
    result = side_by_side([entry("a", 0)], {"r": "a"}, EvalConfig(bootstrap=50))
    assert (result.baseline, result.differences, result.best) == (None, (), ())


def test_published_figures_are_kept() -> None:
    figures = {"source": "s", "comparable": False, "why": "w", "split": None}
    figures |= {"scores": {"a": {"bleu": 1.0}}}
    published = [PublishedFigures("r", Published.model_validate(figures))]
    found = side_by_side([entry("a", 0)], {}, published=published).json()["published"]
    assert found == [{"recipe": "r", **figures}]
