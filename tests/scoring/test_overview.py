"""Tests of the overview of several recipes: columns, lengths, units, costs."""

import math
from pathlib import Path

import pytest
from helpers.score_rows import compare_rows, fixed_difference, fixed_score, score_row, system_difference, with_values
from helpers.scored_runs import OUTPUTS, scored_run

from attnkit.errors import MissingInputError
from attnkit.scoring.overview import OverviewCell, OverviewColumn, overview, overview_of
from attnkit.scoring.results import Comparison, ScoreRow


def row(variant: str, value: float, metric: str = "bleu", **more: object) -> ScoreRow:
    return score_row(variant, {metric: fixed_score(metric, value, "x")}, **more)


def recipe(name: str = "r", **more: object) -> Comparison:
    """Return a baseline of 20 BLEU, a system that is significantly better, and one that is not."""
    base, good, equal = (
        row(variant, value, recipe=name, **more)
        for variant, value in (("base", 20.0), ("good", 25.0), ("equal", 20.5))
    )
    differences = (
        system_difference(base, good, "bleu", fixed_difference(5.0, 0.0, 0.0)),
        system_difference(base, equal, "bleu", fixed_difference(0.5, 0.4, 0.4)),
    )
    return compare_rows(base, good, equal, differences=differences)


def test_recipe_is_a_column_of_differences_from_its_baseline() -> None:
    found = overview_of([recipe("translation/a"), recipe("b")])
    first, second = found.columns
    assert (first.title, second.title) == ("a", "b")
    assert (first.unit, first.baseline, first.score, first.margin) == ("BLEU", "base", 20.0, 1.0)
    assert first.cells == {"good": OverviewCell(5.0, 4.0, 6.0, (2, 2)), "equal": OverviewCell(0.5, -0.5, 1.5, (2, 2))}
    assert [cell.undecided for cell in first.cells.values()] == [False, True]
    assert found.systems == ("base", "good", "equal")
    assert first.gain("good") == 1.0
    assert first.gain("absent") is None


def test_perplexity_is_in_percent_and_lower_is_better() -> None:
    base, other = row("base", 40.0, "perplexity"), row("other", 39.6, "perplexity")
    tested = fixed_difference(-0.4, 0.0, 0.0, better="lower", percent=(-1.0, -1.2, -0.8), margin=4.0)
    difference = system_difference(base, other, "perplexity", tested)
    (column,) = overview_of([compare_rows(base, other, differences=(difference,))]).columns
    assert column.unit == "% of perplexity"
    assert column.cells["other"][:3] == (-1.0, -1.2, -0.8)
    assert column.gain("other") == 0.25


def titles(parts: list[Comparison]) -> list[str]:
    """Return the titles of columns for one comparison with the rows of all `parts`."""
    differences = tuple(difference for part in parts for difference in part.differences)
    whole = compare_rows(*(row for part in parts for row in part.rows), differences=differences)
    return [column.title for column in overview_of([whole]).columns]


def test_columns_are_the_length_of_training_and_the_largest() -> None:
    pairs = [recipe(length=length, corpus="toy-associative-recall") for length in (4, 8, 16, 64)]
    assert titles(pairs) == ["r, 8 pairs", "r, 64 pairs (8 x)"]
    windows = [recipe(), *(recipe(length=length) for length in (128, 1024))]
    assert titles(windows) == ["r", "r, 1,024 tokens"]
    assert titles(windows[1:]) == ["r, 128 tokens", "r, 1,024 tokens"]


def test_costs_of_different_machines_are_not_compared() -> None:
    speeds = {"train_tokens_per_second": 200.0, "train_device": "cpu"}
    base = row("base", 20.0, **speeds)
    fast = row("fast", 20.0, **speeds | {"train_tokens_per_second": 300.0})
    other = row("other", 20.0, **speeds | {"train_device": "cuda"})
    moved = with_values(fast, variant="moved", train_machine="4 cores")
    rows = (fast, other, moved)
    differences = tuple(system_difference(base, row, "bleu", fixed_difference(0.0, 1.0, 1.0)) for row in rows)
    _, speed = overview_of([compare_rows(base, *rows, differences=differences)]).columns
    assert speed.title == "training speed"
    assert {name: round(cell.value) for name, cell in speed.cells.items()} == {"fast": 50}
    assert speed.cells["fast"].undecided is False


def test_overview_of_saved_runs(tmp_path: Path) -> None:
    names = ("one", "two", "three")
    runs = [scored_run(tmp_path, name, [*OUTPUTS[: 5 - wrong], *["a"] * wrong]) for wrong, name in enumerate(names)]
    found = overview(runs, {"toy": "two"})
    assert found.columns[0].baseline == "two"
    assert {*found.columns[0].cells} == {"one", "three"}
    assert all(cell.provisional for cell in found.columns[0].cells.values())
    with pytest.raises(MissingInputError, match="toy: nothing to compare; skipped"):
        overview(runs[:1], {})


def test_costs_are_colored_by_the_logarithm_of_their_ratio() -> None:
    """A mechanism with forty times the memory left all others as pale as the baseline."""
    percents = {"half": -50.0, "twice": 100.0, "forty": 3900.0}
    cells = {name: OverviewCell(value) for name, value in percents.items()}
    column = OverviewColumn("memory", "%", "base", None, "lower", cells)
    half, twice, forty = (column.gain(name) or 0.0 for name in percents)
    assert half == pytest.approx(-twice) == pytest.approx(math.log(2) / math.log(40))
    assert forty == -1
