"""Damaged runs: detected or without effect, never a wrong answer in silence."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from experiment.test_training import session, texts
from helpers.mutations import Subject, make_subject, run_damaged
from helpers.small import job, run_training, small_recipe, write_corpus
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from attnkit.errors import DataError
from attnkit.experiment.verification import verify
from attnkit.runs import Run
from attnkit.storage import tensors
from attnkit.storage.files import sha256_file
from attnkit.train import checkpoint
from attnkit.train.fit import Training

MUTATIONS = settings(max_examples=5, derandomize=True)
"""Few here; `benchmarks/attack.py` makes thousands."""


@pytest.fixture(scope="module", params=["finished", "stopped"])
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("mutations") / "run"
    return make_subject(folder, finished=request.param == "finished")


@pytest.mark.sampled(5)
@MUTATIONS
@given(seed=st.integers(0, 2**32))
def test_a_damaged_run_is_refused_or_answers_as_before(made: Subject, seed: int) -> None:
    kind, found = run_damaged(made, made.folder / "copy", seed)
    for outcome in found:
        assert outcome.verdict in ("same", "refused"), (seed, kind, outcome)


def finished_run(folder: Path) -> Run:
    session(folder)
    return Run.open(folder / "runs/small/base/seed-1")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.model", "metrics.jsonl"])
@pytest.mark.parametrize("damage", [b"", b"{}"], ids=["emptied", "swapped"])
def test_training_a_finished_run_looks_at_its_files(tmp_path: Path, name: str, damage: bytes) -> None:
    """It said "already trained" and printed the old scores."""
    run = finished_run(tmp_path)
    whole = (run.path / name).read_bytes()
    (run.path / name).write_bytes(damage)
    with pytest.raises(DataError, match=rf"{name}: was changed"):
        session(tmp_path)
    (run.path / name).write_bytes(whole)
    assert "already trained" in texts(session(tmp_path))


def test_a_pipe_among_the_outputs_is_not_waited_for(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    path = run.output_path("test")
    path.unlink()
    os.mkfifo(path)
    (run.path / "scores.json").unlink()
    with pytest.raises(Exception, match=r"test.hyp.txt: is a pipe .* regular file"):
        session(tmp_path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"plugins": []}, r"plugins must be a valid dictionary, got \[\]"),
        ({"plugins": {"mine": {"from": "a.py"}}}, "plugins.mine.sha256 is missing"),
        ({"plugins": {"mine": {"sha256": "0" * 64}}}, "plugins.mine.from is missing"),
        ({"seed": "x"}, "seed must be a valid integer, got 'x'"),
        ({"files": 3}, "files must be a valid dictionary, got 3"),
        ({"finished": True}, "finished must be a valid dictionary, got True"),
        ({"finished": {"step": "3", "seconds": 1.0}}, "finished.step must be a valid integer"),
        ({"finished": {"step": -3, "seconds": 1.0}}, "finished.step must be greater than or"),
        ({"threads": 1.5}, "threads must be a valid integer, got 1.5"),
        ({"changes": [{"step": 1}]}, "changes.0.key is missing"),
    ],
)
def test_wrong_types_in_a_manifest_are_named(tmp_path: Path, entries: dict[str, Any], message: str) -> None:
    """Without the manifest's own hash, as of earlier versions."""
    run = Run.create(tmp_path / "run", small_recipe(write_corpus(tmp_path)), name="small", variant="base", seed=1)
    path = run.path / "manifest.json"
    value = json.loads(path.read_bytes())
    del value["sha256"], value["format"]
    path.write_text(json.dumps(value | entries), encoding="utf-8")
    with pytest.raises(DataError, match=rf"manifest\.json: {message}"):
        Run.open(run.path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("method", [], r"method must be .greedy., .beam. or .sample., got \[\]"),
        ("beam", "5", "beam must be a valid integer"),
        ("seed", -1, "seed must be greater than or equal to 0"),
    ],
)
def test_wrong_types_in_scores_are_named(tmp_path: Path, key: str, value: Any, message: str) -> None:
    """Even where the hashes agree: the scores would become those of another search."""
    run = finished_run(tmp_path)
    path = run.path / "scores.json"
    scores = json.loads(path.read_bytes())
    scores["test"]["search"][key] = value
    path.write_text(json.dumps(scores), encoding="utf-8")
    run.record("scores.json", sha256_file(path))
    with pytest.raises(DataError, match=rf"test\.search\.{message}.*eval --fresh"):
        run.scores()


def damaged_checkpoint(folder: Path, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], object]) -> None:
    """Stop a training after a checkpoint, and write another in its place, rightly signed."""
    made = job(folder, small_recipe(write_corpus(folder), steps=4, valid_every=2))
    training = Training(made)
    training.resume()
    newest = checkpoint.latest(made.run)
    assert newest is not None
    values, state = checkpoint.load(newest.path)
    change(values, state)
    checkpoint.save(made.run, newest.step + 1, values, state)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("key", ["step", "epoch", "position", "tokens", "seconds", "best", "worse", "recent"])
@pytest.mark.parametrize("value", ["3", {}, -1.5], ids=["text", "object", "negative"])
def test_wrong_types_in_the_state_of_a_checkpoint_are_named(tmp_path: Path, key: str, value: Any) -> None:
    if (key, value) == ("best", -1.5):
        pytest.skip("a score may be negative")
    damaged_checkpoint(tmp_path, lambda _, state: state["counters"].update({key: value}))
    with pytest.raises(DataError, match=rf"step-1: counters\.{key} must be"):
        run_training(job(tmp_path, small_recipe(write_corpus(tmp_path), steps=4, valid_every=2)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.pop("rng.cpu"),
        lambda values: values.update({"rng.cpu": values["rng.cpu"][:10].clone()}),
        lambda values: values.update({"rng.cpu": values["rng.cpu"].float()}),
        lambda values: values.update({"rng.cpu": torch.zeros_like(values["rng.cpu"])}),
        lambda values: values.update({"interval": torch.zeros(1)}),
    ],
    ids=["missing", "short", "float", "zero", "interval"],
)
def test_a_random_state_that_is_none_is_refused(tmp_path: Path, change: Any) -> None:
    damaged_checkpoint(tmp_path, lambda values, _: change(values))
    with pytest.raises(DataError, match="step-1: the checkpoint does not fit this training"):
        run_training(job(tmp_path, small_recipe(write_corpus(tmp_path), steps=4, valid_every=2)))


def stopped_before_the_end(folder: Path, damage: Callable[[Run], object]) -> Any:
    """A training that averages three validations, stopped at step 6 of 10, damaged, resumed."""
    recipe = small_recipe(write_corpus(folder), steps=10, valid_every=2, average=3)
    training = Training(job(folder, recipe))
    training.resume()
    while training.progress.step < 6:
        training.advance()
    damage(training.job.run)
    return job(folder, recipe)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_damaged_checkpoint_of_the_average_is_refused(tmp_path: Path) -> None:
    """It was left out with a note, and the final weights were others."""

    def damage(run: Run) -> None:
        flip(run.checkpoints / "step-4/tensors.safetensors")

    made = stopped_before_the_end(tmp_path, damage)
    with pytest.raises(DataError, match=r"step-4: damaged .* --fresh"):
        run_training(made)


@pytest.mark.slow
def test_a_checkpoint_that_the_average_no_longer_needs_may_be_damaged(tmp_path: Path) -> None:
    """At step 8 the average is of 4, 6 and 8."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "damaged").mkdir()
    run_training(stopped_before_the_end(tmp_path / "whole", lambda run: None))
    made = stopped_before_the_end(
        tmp_path / "damaged", lambda run: flip(run.checkpoints / "step-2/tensors.safetensors")
    )
    run_training(made)
    weights = [load_file(tmp_path / name / "run/model.safetensors") for name in ("whole", "damaged")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not Run.open(made.run.path).manifest.changes


def test_a_changed_log_is_refused(tmp_path: Path) -> None:
    def damage(run: Run) -> None:
        text = run.log.path.read_text(encoding="utf-8").replace('"epoch": 0', '"epoch": 7', 1)
        run.log.path.write_text(text, encoding="utf-8")

    made = stopped_before_the_end(tmp_path, damage)
    with pytest.raises(DataError, match=r"metrics.jsonl: the records until step 6 were changed"):
        run_training(made)


def test_a_disk_that_cannot_hold_a_checkpoint_is_found_before_the_first_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job(tmp_path, small_recipe(write_corpus(tmp_path)))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensors, "write", full)
    monkeypatch.setattr(Training, "advance", None)
    with pytest.raises(Exception, match=r"step-0: cannot be written: No space left .* free some"):
        run_training(made)


def test_a_whole_run_verifies_and_nothing_is_written(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    found = list(verify(run.path))
    assert {check.state for check in found} == {"same"}, found
    cells = {check.cell for check in found}
    assert {
        "manifest.json",
        "model.safetensors",
        "metrics.jsonl",
        "scores.json",
        "test bleu",
        "checkpoints/step-5",
    } <= cells
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before
