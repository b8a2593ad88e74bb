"""Tests of damaged runs: damage is detected or has no effect, but never gives a wrong result."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from experiment.test_training import open_run, session, texts
from helpers.mutations import Subject, make_subject, run_damaged
from helpers.small import job, run_training, small_recipe, write_corpus
from hypothesis import given, settings
from hypothesis import strategies as st

from attnkit.errors import DataError
from attnkit.experiment.verification import verify
from attnkit.runs import Run
from attnkit.storage import tensors
from attnkit.storage.files import sha256_file
from attnkit.train import checkpoint
from attnkit.train.fit import Training

MUTATIONS = settings(max_examples=5, derandomize=True)
"""Few examples; `benchmarks/attack.py` makes thousands."""


@pytest.fixture(scope="module", params=["finished", "stopped"])
def subject(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("mutations") / "run"
    return make_subject(folder, finished=request.param == "finished")


@pytest.mark.sampled(5)
@MUTATIONS
@given(seed=st.integers(0, 2**32))
def test_damaged_run_raises_or_gives_the_same_results(subject: Subject, seed: int) -> None:
    kind, outcomes = run_damaged(subject, subject.folder / "copy", seed)
    for outcome in outcomes:
        assert outcome.verdict in ("same", "refused"), (seed, kind, outcome)


def finished_run(folder: Path) -> Run:
    session(folder)
    return open_run(folder)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.model", "metrics.jsonl"])
@pytest.mark.parametrize("damage", [b"", b"{}"], ids=["emptied", "swapped"])
def test_training_a_finished_run_checks_its_files(tmp_path: Path, name: str, damage: bytes) -> None:
    """It reported "already trained" and printed the old scores."""
    run = finished_run(tmp_path)
    whole = (run.path / name).read_bytes()
    (run.path / name).write_bytes(damage)
    with pytest.raises(DataError, match=rf"{name}: was changed"):
        session(tmp_path)
    (run.path / name).write_bytes(whole)
    assert "already trained" in texts(session(tmp_path))


def test_pipe_in_place_of_outputs_raises(tmp_path: Path) -> None:
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
def test_wrong_type_in_a_manifest_raises(tmp_path: Path, entries: dict[str, Any], message: str) -> None:
    """The manifests lack their own hash, as those of earlier versions."""
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
def test_wrong_type_in_scores_raises(tmp_path: Path, key: str, value: Any, message: str) -> None:
    """Even if the hashes agree: the scores would become those of another search."""
    run = finished_run(tmp_path)
    path = run.path / "scores.json"
    scores = json.loads(path.read_bytes())
    scores["test"]["search"][key] = value
    path.write_text(json.dumps(scores), encoding="utf-8")
    run.record("scores.json", sha256_file(path))
    with pytest.raises(DataError, match=rf"test\.search\.{message}.*eval --fresh"):
        run.scores()


def resume_damaged(folder: Path, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], object]) -> None:
    """Resume a training after its last checkpoint was replaced by a changed one with correct hashes."""
    stopped = job(folder, small_recipe(write_corpus(folder), steps=4, valid_every=2))
    Training(stopped).resume()
    newest = checkpoint.latest(stopped.run)
    values, state = checkpoint.load(newest.path)
    change(values, state)
    checkpoint.save(stopped.run, newest.step + 1, values, state)
    run_training(job(folder, stopped.recipe))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("key", ["step", "epoch", "position", "tokens", "seconds", "best", "worse", "recent"])
@pytest.mark.parametrize("value", ["3", {}, -1.5], ids=["text", "object", "negative"])
def test_wrong_type_in_the_state_of_a_checkpoint_raises(tmp_path: Path, key: str, value: Any) -> None:
    if (key, value) == ("best", -1.5):
        pytest.skip("a score may be negative")
    with pytest.raises(DataError, match=rf"step-1: counters\.{key} must be"):
        resume_damaged(tmp_path, lambda _, state: state["counters"].update({key: value}))


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
def test_invalid_random_state_raises(tmp_path: Path, change: Any) -> None:
    with pytest.raises(DataError, match="step-1: the checkpoint does not fit this training"):
        resume_damaged(tmp_path, lambda values, _: change(values))


def stop_damage_resume(folder: Path, file: str = "", damage: Callable[[bytes], bytes] = bytes) -> Run:
    """Stop a training at step 6 of 10, damage a file, resume; it averages the weights of three validations."""
    folder.mkdir(exist_ok=True)
    recipe = small_recipe(write_corpus(folder), steps=10, valid_every=2, average=3)
    training = Training(job(folder, recipe))
    training.resume()
    while training.progress.step < 6:
        training.advance()
    if file:
        path = training.job.run.path / file
        path.write_bytes(damage(path.read_bytes()))
    run_training(job(folder, recipe))
    return Run.open(training.job.run.path)


def flip_last_bit(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_damaged_checkpoint_of_the_average_raises(tmp_path: Path) -> None:
    """It was skipped with a note, and the final weights were different."""
    with pytest.raises(DataError, match=r"step-4: damaged .* --fresh"):
        stop_damage_resume(tmp_path, "checkpoints/step-4/tensors.safetensors", flip_last_bit)


@pytest.mark.slow
def test_checkpoint_that_the_average_no_longer_needs_may_be_damaged(tmp_path: Path) -> None:
    """At step 8 the average is of steps 4, 6 and 8."""
    undamaged = stop_damage_resume(tmp_path / "undamaged")
    run = stop_damage_resume(tmp_path / "damaged", "checkpoints/step-2/tensors.safetensors", flip_last_bit)
    expected = undamaged.weights()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in run.weights().items())
    assert not run.manifest.changes


def test_changed_log_raises(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics.jsonl: the records until step 6 were changed"):
        stop_damage_resume(tmp_path, "metrics.jsonl", lambda text: text.replace(b'"epoch": 0', b'"epoch": 7', 1))


def test_full_disk_raises_before_the_first_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "write", Mock(side_effect=OSError(28, "No space left on device")))
    monkeypatch.setattr(Training, "advance", None)
    with pytest.raises(Exception, match=r"step-0: cannot be written: No space left .* free some"):
        run_training(job(tmp_path, small_recipe(write_corpus(tmp_path))))


def test_undamaged_run_is_verified_without_writing(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    checks = list(verify(run.path))
    assert {check.state for check in checks} == {"same"}, checks
    cells = {"manifest.json", "model.safetensors", "metrics.jsonl", "scores.json", "test bleu", "checkpoints/step-5"}
    assert cells <= {check.cell for check in checks}
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before
