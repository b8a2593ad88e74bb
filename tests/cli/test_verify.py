"""`attnkit verify`: what no longer matches is named by file and by cell."""

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import question_runs
from helpers.cli import Cli, Result, run_cli
from helpers.trained import make_run

from attnkit.experiment.verification import verify
from attnkit.recipe.schema import EvalConfig
from attnkit.runs import Run
from attnkit.scoring import evaluation
from attnkit.scoring.saved_scores import SavedScores


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, scored."""
    folder = tmp_path_factory.mktemp("verified")
    for variant in ("base", "other"):
        run = make_run(folder, variant)
        run.log.append({"step": 7, "loss": 1.0})
        run.record("metrics.jsonl", run.log.sha256())
        evaluation.evaluate(run, ["test"], EvalConfig(metrics=("chrf", "perplexity")), device="cpu")
    return folder / "runs"


@pytest.fixture
def attnkit(root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`attnkit verify` in a folder with a copy of the runs."""
    shutil.copytree(root, "runs")
    monkeypatch.setenv("COLUMNS", "200")
    return partial(cli, "verify")


BASE, OTHER = (Path(f"runs/toy/{name}/seed-1") for name in ("base", "other"))


def different(done: Result) -> dict[str, str]:
    """Cells that do not match, with the reason."""
    rows = json.loads(done.out)["rows"]
    return {row["cell"]: row["text"] for row in rows if row["state"] == "different"}


def test_runs_that_are_whole(attnkit: Cli) -> None:
    done = attnkit("runs/toy")
    assert done.code == 0, done.err
    assert "everything that was checked matches" in done.err
    (table,) = done.out.split("\n\n")
    assert "8 same" in table
    assert "2 same" in table
    rows = json.loads(attnkit(str(BASE), "--format", "json").out)["rows"]
    assert {row["state"] for row in rows} == {"same"}
    weights = Run.open(BASE).manifest.files["model.safetensors"]
    assert {row["run_id"] for row in rows} == {weights[:12]}


def _edit_score(run: Run) -> None:
    scores = run.scores()
    scores["test"].metrics["chrf"].score += 1  # type: ignore[operator]
    run.write_scores("test", SavedScores.read(run, "test").texts, scores["test"])  # type: ignore[union-attr]


def _other_outputs(run: Run) -> None:
    """As a later decoding of other weights would have left them, with all hashes right."""
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
        (_other_outputs, {"test chrf": "scoring again gives"}),
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
def test_what_does_not_match_is_named_by_cell(
    attnkit: Cli, damage: Callable[[Run], None], cells: dict[str, str]
) -> None:
    damage(Run.open(BASE))
    done = attnkit("runs", "--format", "json")
    assert done.code == 65
    found = different(done)
    assert found.keys() == cells.keys()
    for cell, text in cells.items():
        assert re.search(text, found[cell]), found
    assert re.search(r"of \d+ checks do not match, the first: runs/toy/base/seed-1: ", done.error)


@pytest.mark.parametrize("instead", ["nothing", "a folder", "another file", "a link"])
@pytest.mark.parametrize(
    "name",
    [
        "data/test.jsonl",
        "data/test.json",
        "metrics.jsonl",
        "scores.json",
        "tokenizer.model",
        "model.safetensors",
        "outputs/test.hyp.txt",
        "outputs/test.stats.npz",
    ],
)
def test_what_is_missing_or_replaced_is_named(name: str, instead: str, root: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(root / "toy/base/seed-1", tmp_path / "seed-1"))
    assert not [one for one in verify(run) if one.state == "different"]
    path = run / name
    path.unlink()
    if instead == "a folder":
        path.mkdir()
    elif instead == "another file":
        path.write_bytes(b"{}\n")
    elif instead == "a link":
        path.symlink_to(tmp_path / "nowhere")
    wrong = [one for one in verify(run) if one.state == "different"]
    assert wrong
    named = Path(name).name
    assert name in {one.cell for one in wrong} or all(named in one.text for one in wrong)


def test_a_table_is_checked_by_the_ids_of_its_runs(attnkit: Cli, capsys: Any, tmp_path: Path) -> None:
    table = json.loads(run_cli(capsys, "eval", "runs/toy", "--metrics", "chrf,perplexity", "--format", "json").out)
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    assert attnkit("runs", "--table", str(path)).code == 0
    row = table["rows"][1]
    assert row["run_id"] == row["weights"][:12]
    told = row["metrics"]["chrf"]["score"]
    row["metrics"]["chrf"]["score"] = told + 1
    table["rows"][0]["run_id"] = "0" * 12
    path.write_text(json.dumps(table), encoding="utf-8")
    done = attnkit("runs", "--table", str(path), "--format", "json")
    assert done.code == 65
    assert different(done) == {
        "test chrf": f"the table has {told + 1}, the run {told}",
        "test perplexity": "no run has this id and score",
    }
    path.write_text("{}", encoding="utf-8")
    done = attnkit("runs", "--table", str(path))
    assert done.code == 65
    assert "table.json: not a table of `attnkit eval --format json`: " in done.error


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
def test_a_table_of_another_form_is_refused_in_one_line(table: Any, root: Path, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    done = run_cli(capsys, "verify", str(root / "toy/base"), "--table", str(path))
    assert done.code == 65
    assert "not a table of" in done.error or "table.json: " in done.error
    assert done.out == ""


def test_a_run_of_an_earlier_version_has_no_hashes(attnkit: Cli) -> None:
    for path in (BASE, OTHER):
        manifest = json.loads((path / "manifest.json").read_bytes())
        kept = {
            name: value
            for name, value in manifest["files"].items()
            if name in ("recipe.yaml", "tokenizer.model", "model.safetensors")
        }
        old = {key: value for key, value in manifest.items() if key not in ("sha256", "format")}
        (path / "manifest.json").write_text(json.dumps(old | {"files": kept}), encoding="utf-8")
    done = attnkit("runs")
    assert done.code == 0
    shown = " ".join(done.out.split())
    assert "manifest.json, data/test.json, data/test.jsonl, metrics.jsonl" in shown
    assert "not checked: no hash recorded" in shown


@pytest.mark.slow
def test_answers_to_questions_are_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run = question_runs.make_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    table = run_cli(capsys, "eval", str(run.path), "--device", "cpu", "--format", "json")
    Path("table.json").write_text(table.out, encoding="utf-8")
    done = run_cli(capsys, "verify", str(run.path), "--format", "json", "--table", "table.json")
    assert done.code == 0, (done.err, different(done))
    rows = json.loads(done.out)["rows"]
    same = {row["kind"] for row in rows if row["state"] == "same"}
    assert same == {"file", "score", "table"}
    assert not [row for row in rows if row["state"] != "same" and row["kind"] != "file"]
