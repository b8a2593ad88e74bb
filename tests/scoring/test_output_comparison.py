"""Outputs of several runs side by side: sentence scores, orders, filters, aggregates."""

import re
from pathlib import Path

import pytest
from helpers.scored import scored_run
from helpers.trained import ROWS
from sacrebleu import sentence_bleu, sentence_chrf

from attnkit.errors import UsageError
from attnkit.runs import Run
from attnkit.scoring import side_by_side
from attnkit.scoring.output_comparison import ComparedOutputs, compare_outputs
from attnkit.scoring.output_facts import by_length, system_facts
from attnkit.scoring.saved_scores import saved_rows
from attnkit.show.output_comparison_tables import example_tables, tables

GOOD = ["ein roter hund", "zwei katzen", "ein hund und eine katze", "katzen", "eine katze"]
BAD = [
    "ein hund",
    "zwei zwei zwei zwei zwei zwei",
    "ein hund und eine katze",
    "",
    "eine sehr rote katze und zwei hunde",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("compared")
    return [scored_run(folder, "good", GOOD), scored_run(folder, "bad", BAD)]


def references(number: int) -> list[str]:
    row = ROWS[number - 1]
    return list(row.references or (row.target,))


def test_sentence_scores_are_those_of_sacrebleu(runs: list[Run]) -> None:
    scorers = {"bleu": sentence_bleu, "chrf": sentence_chrf}
    for metric, scorer in scorers.items():
        for one in compare_outputs(runs, metric=metric).lines:
            expected = [scorer(text, references(one.number)).score for text in one.outputs]
            assert one.scores == pytest.approx(expected)


def numbers(comparison: ComparedOutputs) -> list[int]:
    return [one.number for one in comparison.lines]


def test_orders(runs: list[Run]) -> None:
    by_difference = compare_outputs(runs).sorted("difference")
    differences = [one.difference for one in by_difference.lines]
    assert numbers(by_difference)[0] == 5
    assert differences == sorted(differences, reverse=True)
    assert numbers(by_difference.sorted("line")) == [1, 2, 3, 4, 5]
    lengths = [one.length for one in by_difference.sorted("length").lines]
    assert lengths == [7, 5, 3, 2, 1]
    assert numbers(by_difference.sorted("score"))[-1] == 3
    errors = compare_outputs(runs, metric="ter").sorted("difference")
    assert errors.sign == -1
    assert errors.lines[0].number == 5
    assert errors.lines[0].difference < 0


def test_the_systems_are_tested_as_eval_does(runs: list[Run]) -> None:
    whole = compare_outputs(runs, metric="chrf")
    first, other = (one.difference for one in system_facts(whole))
    assert first is None
    assert other is not None
    rows = [row.only(["chrf"]) for run in runs for row in saved_rows(run)]
    (expected,) = side_by_side(rows, {"toy": "good"}).json()["comparisons"]
    assert (other.value, other.low, other.high, other.p) == tuple(
        expected[name] for name in ("difference", "low", "high", "p")
    )
    (cell,) = [row[2] for row in tables(whole)[0].rows[1:]]
    assert re.fullmatch(r"[+-][\d.]+ \[-[\d.]+, [+-][\d.]+\] p=.*", cell.text)
    assert sum(count for count, _ in by_length(whole).values()) == 5


def test_systems_have_the_names_that_eval_gives_them(runs: list[Run], tmp_path: Path) -> None:
    """Two runs of a variant were called by their paths."""
    other = scored_run(tmp_path, "good", BAD)
    both = [runs[0], other]
    rows = [row for run in both for row in saved_rows(run)]
    assert compare_outputs(both).names == [row.name for row in side_by_side(rows, {}).rows]


def test_facts_of_the_systems(runs: list[Run]) -> None:
    good, bad = system_facts(compare_outputs(runs))
    assert (good.better, good.worse) == (0, 0)
    assert (bad.better, bad.worse) == (1, 3)
    assert (good.empty, bad.empty) == (0, 1)
    assert good.repetition == 0
    assert bad.repetition > 0


def test_totals_are_the_stored_scores(runs: list[Run]) -> None:
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
def test_metrics_that_cannot_judge(runs: list[Run], metric: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare_outputs(runs, metric=metric)


def test_several_references_are_numbered(runs: list[Run]) -> None:
    for number, table in enumerate(example_tables(compare_outputs(runs), "line", 5), 1):
        labels = [row[0].text for row in table.rows if row[0].text.startswith("reference")]
        count = len(references(number))
        several = [f"reference {place}" for place in range(1, count + 1)]
        assert labels == (several if count > 1 else ["reference"])
