"""Tests of `attnkit compare`: examples on the terminal, JSON lines, warnings and errors."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import question_runs, trained
from helpers.cli import Cli
from helpers.scored_runs import scored_run

from attnkit.runs import Run

GOOD = ["ein roter hund", "zwei katzen", "ein hund und eine katze", "katzen", "eine katze"]
HOSTILE = [
    "\x1b[31mein \u202eroter hund",
    "<b>zwei</b> </script><script>alert(1)",
    "",
    "\u05d7\u05ea\u05d5\u05dc [katzen]",
    "eine sehr rote katze und zwei hunde",
]
BOTH = ("runs/toy/good", "runs/toy/hostile")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two scored runs, and two runs of questions that are not scored."""
    folder = tmp_path_factory.mktemp("runs")
    scored_run(folder, "good", GOOD)
    scored_run(folder, "hostile", HOSTILE)
    for seed in (1, 2):
        question_runs.make_run(folder / "questions", seed=seed)
    return folder


@pytest.fixture
def compare(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `attnkit compare`, or another command, in the folder."""
    monkeypatch.chdir(folder)
    return lambda *words, command="compare", code=0: cli(command, *words, code=code)


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_examples_and_tables_fit_the_screen(compare: Any, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = compare(*BOTH).out
    assert max(map(len, out.splitlines())) <= width
    shown = " ".join(out.split())
    for text in ("hostile gains most over good", "hostile loses most against good", "(empty)", "line 5"):
        assert text in shown
    assert "eine [_] katze [_]" in shown
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_missing_words_are_marked_against_the_nearest_reference(compare: Any) -> None:
    assert "eine [_] katze [_]\n" in re.sub(" +\n", "\n", compare(*BOTH).out)


def test_first_seeds_of_two_variants_are_compared(compare: Any, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs/toy", tmp_path / "toy")
    variants = [tmp_path / "toy" / name for name in ("good", "hostile")]
    for variant in variants:
        Run(shutil.copytree(variant / "seed-1", variant / "seed-2")).update(seed=2)
    done = compare(*map(str, variants))
    assert "hostile seed 1 gains most over good seed 1" in " ".join(done.out.split()), done.err


def test_examples_can_be_sorted_by_line(compare: Any) -> None:
    out = compare(*BOTH, "--sort", "line", "-n", "2").out
    assert re.findall(r"^line (\d+)", out, re.MULTILINE) == ["1", "2"]
    assert "test, 5 sentences" in out


def test_json_lines_hold_every_sentence_unchanged(compare: Any) -> None:
    rows = [json.loads(line) for line in compare(*BOTH, "--format", "jsonl").out.splitlines()]
    assert sorted(row["line"] for row in rows) == [1, 2, 3, 4, 5]
    assert rows[0]["line"] == 5
    assert rows[0]["metric"] == "chrf"
    for row in rows:
        first, second = row["systems"]
        assert (first["name"], second["name"]) == ("good", "hostile")
        assert first["output"] == GOOD[row["line"] - 1]
        assert second["output"] == HOSTILE[row["line"] - 1]
        assert row["difference"] == pytest.approx(second["score"] - first["score"])


@pytest.mark.slow
def test_questions_are_compared_with_their_contexts(compare: Any) -> None:
    runs = [f"questions/runs/toy/base/seed-{seed}" for seed in (1, 2)]
    compare(*runs, command="eval")
    rows = [json.loads(line) for line in compare(runs[0], "--format", "jsonl").out.splitlines()]
    assert len(rows) == 6
    for row in rows:
        assert [system["name"] for system in row["systems"]] == ["entropy", "mean", "concat", "none"]
        assert len(row["contexts"]) == 4
        assert 1 <= row["systems"][0]["context"] <= 4
        assert row["systems"][1]["context"] in (None, 1, 2, 3, 4)  # None: unclear
    out = compare(*runs, "--sort", "line", "-n", "1").out
    for text in ("question 1", "base seed 2", "has the answer", "test, 4 contexts, 6 questions"):
        assert text in out
    assert "did you mean mean?" in compare(*runs, "--method", "meen", code=2).error


@pytest.mark.filterwarnings("always::UserWarning")
def test_changed_test_lines_give_a_warning(compare: Any, folder: Path) -> None:
    test = folder / "test.jsonl"
    lines = test.read_text(encoding="utf-8")
    test.write_text(lines.replace("cats", "mice"), encoding="utf-8")
    try:
        assert "the run's stored rows are used" in compare(*BOTH).err
    finally:
        test.write_text(lines, encoding="utf-8")


def test_changed_outputs_are_an_error(compare: Any, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs", tmp_path / "runs")
    (output,) = (tmp_path / BOTH[1]).glob("seed-1/outputs/*.hyp.txt")
    output.write_text("other\n", encoding="utf-8")
    assert "damaged" in compare(*(str(tmp_path / variant / "seed-1") for variant in BOTH), code=65).error


def test_runs_of_different_test_lines_are_an_error(
    compare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row._replace(source=row.source.replace("cats", "mice")) for row in trained.ROWS]
    monkeypatch.setattr(trained, "ROWS", rows)
    other = scored_run(tmp_path, "other", GOOD)
    error = compare("runs/toy/good", str(other.path), code=65).error
    assert "were scored on different test lines (sources differ)" in error


def test_different_search_settings_give_a_note(compare: Any, tmp_path: Path) -> None:
    run = scored_run(tmp_path, "wide", GOOD)
    scores = json.loads((run.path / "scores.json").read_text(encoding="utf-8"))
    scores["test"]["search"]["beam"] = 7
    (run.path / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    run.record("scores.json", run.sha256("scores.json"))
    shown = " ".join(compare("runs/toy/good", str(run.path)).out.split())
    assert "decoded with different search settings: good beam=2; wide beam=7" in shown
