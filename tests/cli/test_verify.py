"""Tests of `attnkit verify`: damaged, missing and changed files and scores, and tables of `attnkit eval`."""

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import question_runs
from helpers.cli import Cli, Result
from helpers.trained import make_run

from attnkit.experiment.verification import verify
from attnkit.recipe.schema import EvalConfig
from attnkit.runs import Run
from attnkit.scoring import evaluation
from attnkit.scoring.saved_scores import SavedScores


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two scored runs."""
    folder = tmp_path_factory.mktemp("verified")
    for variant in ("base", "other"):
        run = make_run(folder, variant)
        run.log.append({"step": 7, "loss": 1.0})
        run.record("metrics.jsonl", run.log.sha256())
        evaluation.evaluate(run, ["test"], EvalConfig(metrics=("chrf", "perplexity")), device="cpu")
    return folder / "runs"


@pytest.fixture
def run_verify(root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `attnkit verify` in a folder with a copy of the runs."""
    shutil.copytree(root, "runs")
    monkeypatch.setenv("COLUMNS", "200")
    return partial(cli, "verify")


BASE, OTHER = (Path(f"runs/toy/{name}/seed-1") for name in ("base", "other"))


def different(done: Result) -> dict[str, str]:
    """Return the cells that do not match, with the reason."""
    rows = json.loads(done.out)["rows"]
    return {row["cell"]: row["text"] for row in rows if row["state"] == "different"}


def test_undamaged_runs_match(run_verify: Cli) -> None:
    done = run_verify("runs/toy")
    assert "everything that was checked matches" in done.err
    (table,) = done.out.split("\n\n")
    assert "8 same" in table
    assert "2 same" in table
    rows = json.loads(run_verify(str(BASE), "--format", "json").out)["rows"]
    assert {row["state"] for row in rows} == {"same"}
    weights = Run.open(BASE).manifest.files["model.safetensors"]
    assert {row["run_id"] for row in rows} == {weights[:12]}


def _edit_score(run: Run) -> None:
    scores = run.scores()
    scores["test"].metrics["chrf"].score += 1  # type: ignore[operator]
    run.write_scores("test", SavedScores.read(run, "test").texts, scores["test"])  # type: ignore[union-attr]


def _edit_outputs(run: Run) -> None:
    """Replace outputs as a later decoding by other weights would, with matching hashes."""
    saved = SavedScores.read(run, "test")
    assert saved is not None
    saved.texts[1] = "ein hund"
    saved.write(run)


def _damage(name: str) -> Callable[[Run], None]:
    def damage(run: Run) -> None:
        path = run.path / name
        path.write_bytes(path.read_bytes()[:-2] + b"?\n")

    return damage


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "cells"),
    [
        (_edit_score, {"test chrf": "scores.json has .*, scoring again gives"}),
        (_edit_outputs, {"test chrf": "scoring again gives"}),
        (_damage("metrics.jsonl"), {"metrics.jsonl": "was changed"}),
        (_damage("recipe.yaml"), {"recipe.yaml": "was changed"}),
        (_damage("manifest.json"), {"manifest.json": "not valid JSON"}),
        (_damage("data/test.json"), {"data/test.json": "was changed", "test": "its rows"}),
        (
            _damage("data/test.jsonl"),
            {"data/test.jsonl": "was changed after scoring", "test": "its rows: data/test.jsonl: was changed"},
        ),
        (
            _damage("outputs/test.hyp.txt"),
            {"test chrf": "test.hyp.txt was changed", "test perplexity": "test.hyp.txt was changed"},
        ),
        (_damage("scores.json"), {"scores.json": "was changed", "all": "scores.json: was changed"}),
        (_damage("model.safetensors"), {"model.safetensors": "was changed"}),
    ],
    ids=["score", "outputs", "log", "recipe", "manifest", "note", "rows", "text", "scores", "weights"],
)
def test_damage_is_named_by_cell(run_verify: Cli, damage: Callable[[Run], None], cells: dict[str, str]) -> None:
    damage(Run.open(BASE))
    done = run_verify("runs", "--format", "json", code=65)
    found = different(done)
    assert found.keys() == cells.keys()
    for cell, text in cells.items():
        assert re.search(text, found[cell]), found
    assert re.search(r"of \d+ checks do not match, the first: runs/toy/base/seed-1: ", done.error)


NAMES = ["data/test.jsonl", "data/test.json", "metrics.jsonl", "scores.json", "tokenizer.model", "model.safetensors"]
NAMES += ["outputs/test.hyp.txt", "outputs/test.stats.npz"]


@pytest.mark.parametrize("replacement", ["nothing", "a folder", "another file", "a link"])
@pytest.mark.parametrize("name", NAMES)
def test_missing_or_replaced_file_is_named(name: str, replacement: str, root: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(root / "toy/base/seed-1", tmp_path / "seed-1"))
    assert not [check for check in verify(run) if check.state == "different"]
    path = run / name
    path.unlink()
    if replacement == "a folder":
        path.mkdir()
    elif replacement == "another file":
        path.write_bytes(b"{}\n")
    elif replacement == "a link":
        path.symlink_to(tmp_path / "nowhere")
    failed = [check for check in verify(run) if check.state == "different"]
    assert failed
    assert name in {check.cell for check in failed} or all(path.name in check.text for check in failed)


def test_table_is_checked_by_the_ids_of_its_runs(run_verify: Cli, cli: Cli) -> None:
    table = json.loads(cli("eval", "runs/toy", "--metrics", "chrf,perplexity", "--format", "json").out)
    path = Path("table.json")
    path.write_text(json.dumps(table), encoding="utf-8")
    words = ("runs", "--table", "table.json")
    run_verify(*words)
    row = table["rows"][1]
    assert row["run_id"] == row["weights"][:12]
    score = row["metrics"]["chrf"]["score"]
    row["metrics"]["chrf"]["score"] = score + 1
    table["rows"][0]["run_id"] = "0" * 12
    path.write_text(json.dumps(table), encoding="utf-8")
    assert different(run_verify(*words, "--format", "json", code=65)) == {
        "test chrf": f"the table has {score + 1}, the run {score}",
        "test perplexity": "no run has this id and score",
    }
    path.write_text("{}", encoding="utf-8")
    error = run_verify(*words, code=65).error
    assert "table.json: not a table of `attnkit eval --format json`: " in error


def _row(**changed: Any) -> dict[str, Any]:
    row = {"split": "test", "metrics": {"chrf": {"score": 1.0}}, "run": "r", "run_id": "0" * 12}
    return {"rows": [row | changed]}


@pytest.mark.parametrize(
    "table",
    [
        [],
        {"rows": 5},
        {"rows": [5]},
        _row(split=5),
        _row(run_id=5),
        _row(metrics=5),
        _row(metrics={"chrf": {"score": 10**400}}),
        _row(metrics={"chrf": {}}),
        _row(contexts=10**400),
        _row(run="\ud800"),
    ],
    ids=repr,
)
def test_table_of_another_format_is_a_one_line_error(table: Any, root: Path, cli: Cli) -> None:
    Path("table.json").write_text(json.dumps(table), encoding="utf-8")
    done = cli("verify", str(root / "toy/base"), "--table", "table.json", code=65)
    assert "not a table of" in done.error or "table.json: " in done.error
    assert done.out == ""


def test_files_of_older_runs_without_hashes_are_not_checked(run_verify: Cli) -> None:
    for run in (BASE, OTHER):
        path = run / "manifest.json"
        manifest = json.loads(path.read_bytes())
        files = {name: manifest["files"][name] for name in ("recipe.yaml", "tokenizer.model", "model.safetensors")}
        old = {key: value for key, value in manifest.items() if key not in ("sha256", "format")}
        path.write_text(json.dumps(old | {"files": files}), encoding="utf-8")
    shown = " ".join(run_verify("runs").out.split())
    assert "manifest.json, data/test.json, data/test.jsonl, metrics.jsonl" in shown
    assert "not checked: no hash recorded" in shown


@pytest.mark.slow
def test_answers_to_questions_are_scored_again(tmp_path: Path, cli: Cli) -> None:
    run = str(question_runs.make_run(tmp_path).path)
    Path("table.json").write_text(cli("eval", run, "--device", "cpu", "--format", "json").out, encoding="utf-8")
    rows = json.loads(cli("verify", run, "--format", "json", "--table", "table.json").out)["rows"]
    assert {row["kind"] for row in rows if row["state"] == "same"} == {"file", "score", "table"}
    assert {row["kind"] for row in rows if row["state"] != "same"} <= {"file"}
