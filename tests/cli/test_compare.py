"""`attnkit compare`: on the terminal, as JSON lines; and what it refuses."""

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scored runs, one that is not, and one of questions."""
    made = tmp_path_factory.mktemp("runs")
    scored_run(made, "good", GOOD)
    scored_run(made, "hostile", HOSTILE)
    trained.make_run(made, "unscored")
    for seed in (1, 2):
        question_runs.make_run(made / "asked", seed=seed)
    return made


@pytest.fixture
def attnkit(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command in this process, in the folder."""
    monkeypatch.chdir(folder)
    return lambda *words, command="compare": cli(command, *words)


BOTH = ("runs/toy/good", "runs/toy/hostile")


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_examples_and_tables_fit_the_screen(attnkit: Any, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = attnkit(*BOTH)
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= width
    shown = " ".join(done.out.split())
    for text in ("hostile gains most over good", "hostile loses most against good", "(empty)", "line 5"):
        assert text in shown
    assert "eine [_] katze [_]" in shown
    assert "\x1b" not in done.out
    assert "\u202e" not in done.out


def test_words_are_marked_against_the_nearest_reference(attnkit: Any) -> None:
    assert "eine [_] katze [_]\n" in re.sub(" +\n", "\n", attnkit(*BOTH).out)


def test_the_first_seeds_of_two_variants_are_contrasted(attnkit: Any, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs/toy", tmp_path / "toy")
    for variant in ("good", "hostile"):
        first = Run.open(tmp_path / "toy" / variant / "seed-1")
        Run(shutil.copytree(first.path, first.path.with_name("seed-2"))).update(seed=2)
    done = attnkit(*(str(tmp_path / "toy" / name) for name in ("good", "hostile")))
    assert "hostile seed 1 gains most over good seed 1" in " ".join(done.out.split()), done.err


def test_orders(attnkit: Any) -> None:
    lines = attnkit(*BOTH, "--sort", "line", "-n", "2").out
    assert re.findall(r"^line (\d+)", lines, re.MULTILINE) == ["1", "2"]
    assert "test, 5 sentences" in lines


def test_json_lines_hold_every_sentence_as_it_is(attnkit: Any) -> None:
    done = attnkit(*BOTH, "--format", "jsonl")
    rows = [json.loads(line) for line in done.out.splitlines()]
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
def test_questions_with_their_contexts(attnkit: Any) -> None:
    runs = [f"asked/runs/toy/base/seed-{seed}" for seed in (1, 2)]
    assert attnkit(*runs, command="eval").code == 0
    done = attnkit(runs[0], "--format", "jsonl")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert len(rows) == 6
    for row in rows:
        assert [one["name"] for one in row["systems"]] == ["entropy", "mean", "concat", "none"]
        assert len(row["contexts"]) == 4
        assert 1 <= row["systems"][0]["context"] <= 4
        assert row["systems"][1]["context"] in (None, 1, 2, 3, 4)  # unclear, or one that leads
    done = attnkit(*runs, "--sort", "line", "-n", "1")
    assert "question 1" in done.out
    assert "base seed 2" in done.out
    assert "has the answer" in done.out
    assert "test, 4 contexts, 6 questions" in done.out
    refused = attnkit(*runs, "--method", "meen").error
    assert "did you mean mean?" in refused


@pytest.mark.filterwarnings("always::UserWarning")
def test_changed_lines_are_told_of_and_changed_outputs_refused(attnkit: Any, folder: Path, tmp_path: Path) -> None:
    runs = [f"runs/toy/{name}/seed-1" for name in ("good", "hostile")]
    test = folder / "test.jsonl"
    lines = test.read_text(encoding="utf-8")
    test.write_text(lines.replace("cats", "mice"), encoding="utf-8")
    try:
        done = attnkit(*runs)
        assert "the run's stored rows are used" in done.err
        assert done.code == 0, done.err
    finally:
        test.write_text(lines, encoding="utf-8")
    copies = []
    for run in runs:
        copies.append(tmp_path / run)
        shutil.copytree(run, copies[-1])
    (output,) = (copies[1] / "outputs").glob("*.hyp.txt")
    output.write_text("other\n", encoding="utf-8")
    assert "damaged" in attnkit(*map(str, copies)).error


def test_runs_of_different_lines_are_refused(attnkit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row._replace(source=row.source.replace("cats", "mice")) for row in trained.ROWS]
    monkeypatch.setattr(trained, "ROWS", rows)
    other = scored_run(tmp_path, "other", GOOD)
    refused = attnkit("runs/toy/good", str(other.path)).error
    assert "were scored on different test lines (sources differ)" in refused


def test_different_searches_are_told(attnkit: Any, tmp_path: Path) -> None:
    run = scored_run(tmp_path, "wide", GOOD)
    scores = json.loads((run.path / "scores.json").read_text(encoding="utf-8"))
    (entry,) = scores.values()
    entry["search"]["beam"] = 7
    (run.path / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    run.record("scores.json", run.sha256("scores.json"))
    shown = " ".join(attnkit("runs/toy/good", str(run.path)).out.split())
    assert "decoded with different search settings: good beam=2; wide beam=7" in shown
