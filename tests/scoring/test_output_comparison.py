"""Tests of the comparison of outputs: sentence scores, orders, totals by system."""

import re
from pathlib import Path
from typing import Any

import pytest
from helpers.scored_runs import OUTPUTS, scored_run
from helpers.trained import ROWS
from sacrebleu import sentence_bleu, sentence_chrf

from attnkit.errors import UsageError
from attnkit.runs import Run
from attnkit.scoring import side_by_side
from attnkit.scoring.output_comparison import ComparedOutputs, compare_outputs
from attnkit.scoring.output_facts import by_length, system_facts
from attnkit.scoring.saved_scores import saved_rows
from attnkit.show.output_comparison_tables import example_tables, tables

BAD = ["ein hund", "zwei " * 6, "ein hund und eine katze", "", "eine sehr rote katze und zwei hunde"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("compared")
    return [scored_run(folder, "good", OUTPUTS), scored_run(folder, "bad", BAD)]


def references(number: int) -> list[str]:
    row = ROWS[number - 1]
    return list(row.references or (row.target,))


@pytest.mark.parametrize(("metric", "scorer"), [("bleu", sentence_bleu), ("chrf", sentence_chrf)])
def test_sentence_scores_equal_those_of_sacrebleu(runs: list[Run], metric: str, scorer: Any) -> None:
    for line in compare_outputs(runs, metric=metric).lines:
        expected = [scorer(text, references(line.number)).score for text in line.outputs]
        assert line.scores == pytest.approx(expected)


def numbers(comparison: ComparedOutputs) -> list[int]:
    return [line.number for line in comparison.lines]


def test_orders(runs: list[Run]) -> None:
    by_difference = compare_outputs(runs).sorted("difference")
    differences = [line.difference for line in by_difference.lines]
    assert numbers(by_difference)[0] == 5
    assert differences == sorted(differences, reverse=True)
    assert numbers(by_difference.sorted("line")) == [1, 2, 3, 4, 5]
    assert [line.length for line in by_difference.sorted("length").lines] == [7, 5, 3, 2, 1]
    assert numbers(by_difference.sorted("score"))[-1] == 3
    errors = compare_outputs(runs, metric="ter").sorted("difference")
    assert errors.sign == -1
    assert errors.lines[0].number == 5
    assert errors.lines[0].difference < 0


def test_differences_equal_those_of_eval(runs: list[Run]) -> None:
    whole = compare_outputs(runs, metric="chrf")
    first, other = (system.difference for system in system_facts(whole))
    assert first is None
    assert other is not None
    rows = [row.only(["chrf"]) for run in runs for row in saved_rows(run)]
    (expected,) = side_by_side(rows, {"toy": "good"}).json()["comparisons"]
    names = ("difference", "low", "high", "p")
    assert [other.value, other.low, other.high, other.p] == [expected[name] for name in names]
    (cell,) = [row[2] for row in tables(whole)[0].rows[1:]]
    assert re.fullmatch(r"[+-][\d.]+ \[-[\d.]+, [+-][\d.]+\] p=.*", cell.text)
    assert sum(count for count, _ in by_length(whole).values()) == 5


def test_names_of_systems_equal_those_of_eval(runs: list[Run], tmp_path: Path) -> None:
    """Two runs of a variant were named by their paths."""
    both = [runs[0], scored_run(tmp_path, "good", BAD)]
    rows = [row for run in both for row in saved_rows(run)]
    assert compare_outputs(both).names == [row.name for row in side_by_side(rows, {}).rows]


def test_facts_of_the_systems(runs: list[Run]) -> None:
    good, bad = system_facts(compare_outputs(runs))
    assert (good.better, good.worse) == (0, 0)
    assert (bad.better, bad.worse) == (1, 3)
    assert (good.empty, bad.empty) == (0, 1)
    assert good.repetition == 0
    assert bad.repetition > 0


def test_scores_of_systems_equal_the_saved_scores(runs: list[Run]) -> None:
    whole = compare_outputs(runs, metric="bleu")
    for run, system in zip(runs, system_facts(whole), strict=True):
        assert system.score == pytest.approx(run.scores()["test"].metrics["bleu"].score)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("blue", "did you mean bleu"),
        ("distinct-1", "does not score single sentences"),
        ("length-ratio", "does not score single sentences"),
        ("rouge", "is a group of metrics"),
        ("perplexity", "attnkit eval --metrics perplexity"),
    ],
)
def test_metrics_without_sentence_scores_raise(runs: list[Run], metric: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare_outputs(runs, metric=metric)


def test_several_references_are_numbered(runs: list[Run]) -> None:
    for number, table in enumerate(example_tables(compare_outputs(runs), "line", 5), 1):
        labels = [row[0].text for row in table.rows if row[0].text.startswith("reference")]
        count = len(references(number))
        assert labels == ([f"reference {place + 1}" for place in range(count)] if count > 1 else ["reference"])
