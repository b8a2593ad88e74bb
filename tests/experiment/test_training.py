"""Tests of training sessions: existing runs, changed recipes, precision, published figures, memory, errors."""

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from helpers.events import StopTraining, record_events, stop_at
from helpers.small import small_recipe, write_corpus

from attnkit import errors
from attnkit.experiment.experiment import Experiment, RunTraining
from attnkit.experiment.resumption import allowed_changes, needs_updates
from attnkit.experiment.settings import TrainingSettings
from attnkit.experiment.training import train
from attnkit.memory import reset_peak_memory
from attnkit.recipe import Recipe, RecipeFile, load
from attnkit.recipe.published import Published
from attnkit.runs import Run
from attnkit.scoring import side_by_side
from attnkit.scoring.results import PublishedFigures
from attnkit.scoring.saved_scores import saved_rows
from attnkit.show.comparison_tables import comparison_table
from attnkit.storage.lock import held
from attnkit.train import checkpoint
from attnkit.train.events import Event, SavedEvent, ignore
from attnkit.train.signals import StopSignals


def settings(
    folder: Path, recipes: dict[str, Recipe], name: str = "small", figures: Any = None, **options: Any
) -> Any:
    """Return settings for training recipes, by the names of their variants, into folder/runs."""
    file = RecipeFile(name, folder / f"{name}.yaml", recipes, None, {}, figures)
    return TrainingSettings(file=file, out=folder / "runs", device="cpu", **options)


def train_variants(*args: Any, watch: Any = ignore, **options: Any) -> list[Event]:
    return record_events(train, settings(*args, **options), watch=watch)


def session(folder: Path, model: dict[str, Any] | None = None, **options: Any) -> list[Event]:
    """Train the small recipe, with changed settings of `train` or `model`, and return the events."""
    others = {key: options.pop(key) for key in ("fresh", "allow_change", "watch") if key in options}
    recipe = small_recipe(write_corpus(folder), **{"steps": 5} | options)
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update=model or {})})
    return train_variants(folder, {"base": recipe}, **others)


def texts(events: list[Event]) -> str:
    return "\n".join(str(event) for event in events)


def open_run(folder: Path, name: str = "small", variant: str = "base") -> Run:
    return Run.open(folder / "runs" / name / variant / "seed-1")


def files(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files of a finished run."""
    names = ("manifest.json", "recipe.yaml", "model.safetensors", "scores.json", "metrics.jsonl")
    return {name: (open_run(folder).path / name).read_bytes() for name in names}


def test_fresh_start_without_data_keeps_the_old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--fresh removed the run before it found that the data were missing."""
    session(tmp_path)
    before = files(tmp_path)
    monkeypatch.setattr("attnkit.experiment.experiment.prepare", Mock(side_effect=errors.MissingInputError("no data")))
    with pytest.raises(errors.MissingInputError, match="no data"):
        session(tmp_path, fresh=True)
    assert files(tmp_path) == before


def test_fresh_start_clears_a_run_without_manifest(tmp_path: Path) -> None:
    """It raised with the advice to use --fresh, which was already set."""
    session(tmp_path)
    (open_run(tmp_path).path / "manifest.json").unlink()
    session(tmp_path, fresh=True)
    assert open_run(tmp_path).finished


def test_change_that_does_not_fit_the_checkpoint_keeps_the_run(tmp_path: Path) -> None:
    """--allow-change stored the wider recipe and removed `finished` before it read the weights."""
    session(tmp_path)
    before = files(tmp_path)
    with pytest.raises(errors.DataError, match="does not fit"):
        session(tmp_path, model={"width": 32}, steps=7, allow_change=True)
    assert files(tmp_path) == before


def test_allowed_change_is_reported_stored_and_applied(tmp_path: Path) -> None:
    session(tmp_path)
    assert "train.steps: 5 -> 7" in texts(session(tmp_path, steps=7, allow_change=True))
    run = open_run(tmp_path)
    assert (run.recipe.train.steps, run.manifest.finished.updates) == (7, 7)


def test_allowed_change_of_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    """The recipe was changed although the weights were trained with the old recipe."""
    session(tmp_path)
    before = files(tmp_path)
    events = texts(session(tmp_path, lr=0.5, allow_change=True))
    assert "already trained; not changed: train.lr: 0.005 -> 0.5 (--fresh trains with the new values)" in events
    assert files(tmp_path) == before


def test_changes_during_training_are_recorded_in_the_manifest(tmp_path: Path) -> None:
    session(tmp_path)
    session(tmp_path, steps=7, lr=0.5, allow_change=True)
    session(tmp_path, steps=9, lr=0.5, allow_change=True)
    run = open_run(tmp_path)
    changes = [change.model_dump() for change in run.manifest.changes]
    assert changes == [
        {"step": 5, "key": "train.steps", "old": "5", "new": "7"},
        {"step": 5, "key": "train.lr", "old": "0.005", "new": "0.5"},
        {"step": 7, "key": "train.steps", "old": "7", "new": "9"},
    ]
    result = side_by_side(saved_rows(run), {})
    assert result.json()["rows"][0]["changes"] == changes
    expected = "changed after training began: train.steps 5 -> 7 after step 5, train.lr"
    assert any(note.startswith(expected) for note in comparison_table(result).notes)


def test_state_of_a_dry_run_is_what_training_does(tmp_path: Path) -> None:
    """--dry-run reported `done` for runs whose training raises."""
    data = write_corpus(tmp_path)
    run = Run(tmp_path / "runs/small/base/seed-1")

    def state(fresh: bool = False, allow_change: bool = False, **changes: Any) -> Any:
        recipe = small_recipe(data, **{"steps": 5, **changes})
        chosen = settings(tmp_path, {"base": recipe}, fresh=fresh, allow_change=allow_change)
        return RunTraining(Experiment(chosen, StopSignals(), ignore), "base", 1).state()

    assert state().text == "new"
    (run.path / "outputs").mkdir(parents=True)
    assert state().text == "refused: in use"
    (run.path / "outputs").rmdir()
    session(tmp_path)
    assert state().text == "skipped: done"
    assert state(fresh=True).text == "new"
    assert state(lr=0.5).text == "refused: recipe changed"
    assert "train.lr: 0.005 -> 0.5" in str(state(lr=0.5).error)
    assert state(lr=0.5, allow_change=True).text == "skipped: done"
    assert state(steps=9, allow_change=True).text == "resumes at 5"
    with held(run.path / ".lock", "this run"):
        assert state().text == "refused: in use"
    (run.path / "manifest.json").write_text("{")
    assert state().text == "refused: damaged"


@pytest.mark.slow
@pytest.mark.parametrize(("before", "now", "expected"), [(3, 3, False), (3, 2, False), (3, 5, True), (3, 0, True)])
def test_run_that_ended_by_patience_resumes_with_more_patience(
    tmp_path: Path, before: int, now: int, expected: bool
) -> None:
    session(tmp_path, patience=before)
    run = open_run(tmp_path)
    run.update(finished={"reason": "patience"})
    train = run.recipe.train.model_copy(update={"patience": now, "steps": 50})
    recipe = run.recipe.model_copy(update={"train": train})
    assert needs_updates(run, recipe, allowed_changes(run, recipe, allow=True)) == expected
    with pytest.raises(errors.RecipeError, match=f"--allow-change to {'resume' if expected else 'keep'} it"):
        allowed_changes(run, recipe, allow=False)


def test_changed_precision_applies_to_the_next_updates(tmp_path: Path) -> None:
    """The recipe was changed to bf16, but updates continued in fp32."""
    session(tmp_path)
    assert "precision='bf16'" in texts(session(tmp_path, steps=7, precision="bf16", allow_change=True))
    assert open_run(tmp_path).manifest.precision == "bf16"


@pytest.mark.slow
@pytest.mark.parametrize("names", [("fixed",), ("fixed", "free", "other")])
def test_precision_of_a_variant_does_not_apply_to_other_variants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """The precision of the first variant was used for variants with precision auto, without a measurement."""
    choose = Mock(return_value=("fp32", "measured"))
    monkeypatch.setattr("attnkit.experiment.cost.choose_precision", choose)
    data, precisions = write_corpus(tmp_path), {"fixed": "bf16", "free": "auto", "other": "auto"}
    recipes = {name: small_recipe(data, steps=2, precision=value) for name, value in precisions.items()}
    for selected in (names, tuple(recipes)):  # in one session and in two
        train_variants(tmp_path, recipes, variants=selected)
    found = {name: open_run(tmp_path, variant=name).manifest.precision for name in recipes}
    assert found == {"fixed": "bf16", "free": "fp32", "other": "fp32"}
    choose.assert_called_once()


def test_validation_that_is_not_finite_raises_diverged_error(tmp_path: Path) -> None:
    """A validation before an update ended with code 65, "its weights are damaged"."""
    with pytest.raises(errors.DivergedError, match=r"^step 1: .* in the validation; .*lower train\.lr"):
        session(tmp_path, lr=1e30, warmup=1, valid_every=1)
    assert "in the validation" in open_run(tmp_path).manifest.failed
    session(tmp_path, lr=1e-3, allow_change=True, fresh=True)
    assert open_run(tmp_path).manifest.failed is None


def test_manifest_has_the_variants_of_the_recipe(tmp_path: Path) -> None:
    session(tmp_path)
    assert open_run(tmp_path).manifest.variants == ["base"]


def published_session(folder: Path, figures: Published | None) -> Run:
    """Train, or skip, with these figures in the recipe file."""
    train_variants(folder, {"base": small_recipe(write_corpus(folder), steps=2)}, figures=figures)
    return open_run(folder)


def test_run_has_the_latest_published_figures_of_the_recipe_file(tmp_path: Path) -> None:
    """`attnkit eval RUN` reads them; changed figures do not change the recipe."""
    first, second = (
        Published(source=source, comparable=False, why="x", scores={"base": {"bleu": 27.0}})
        for source in ("one", "two")
    )
    manifest = published_session(tmp_path, first).manifest
    assert manifest.published["source"] == "one"
    run = published_session(tmp_path, second)
    assert run.manifest.hashes == manifest.hashes
    assert [figures.json() for figures in PublishedFigures.of_runs([run, run])] == [
        {"recipe": "small", **second.model_dump()}
    ]
    assert published_session(tmp_path, None).manifest.published is None
    run.update(published={"source": 5})
    with pytest.raises(errors.DataError, match=r"manifest.json: published: source must be a valid str"):
        PublishedFigures.of_runs([run])


def test_every_training_of_a_process_has_its_own_peak_memory(tmp_path: Path) -> None:
    """The system reports the peak of the whole process; the second training needs less than the first."""
    if reset_peak_memory("cpu") is None:
        pytest.skip("this system does not report memory")
    peaks = []
    for name, size in (("large", 300), ("small", 0)):
        memory = torch.ones(size, 2**18)  # [size] MiB
        train_variants(tmp_path, {"base": small_recipe(write_corpus(tmp_path), steps=2)}, name=name)
        del memory
        peaks.append(open_run(tmp_path, name).manifest.finished.peak_memory_bytes)
    assert peaks[0] - peaks[1] > 200 * 2**20


def test_peak_memory_is_none_if_the_system_does_not_report_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.train.fit.reset_peak_memory", lambda _: None)
    assert published_session(tmp_path, None).manifest.finished.peak_memory_bytes is None


def test_data_may_move_but_not_change(tmp_path: Path) -> None:
    """A finished run is skipped if its files have moved; if they differ, training raises."""
    tmp_path /= "a_long_name_of_a_folder_" * 5  # two long paths must not be shortened to the same text
    tmp_path.mkdir()
    lines = "".join(f'{{"source": "a b {n}", "target": "b a {n}"}}\n' for n in range(30))
    for folder, text in (("old", lines), ("new", lines), ("other", lines.replace("a b", "a c"))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.jsonl").write_text(text)
        (tmp_path / folder / "r.yaml").write_text(
            "task: translation\ndata: {train: rows.jsonl, valid: rows.jsonl}\n"
            "tokenizer: {size: 40}\nmodel: {width: 8, layers: 1, heads: 1, ff: 8}\n"
            "train: {steps: 2, warmup: 1, precision: fp32}\n"
            "search: {method: greedy, beam: 1, max_length: 4}\neval: {bootstrap: 0}\n"
        )

    def train_in(folder: str) -> str:
        file = load(tmp_path / folder / "r.yaml")
        return texts(record_events(train, TrainingSettings(file=file, out=tmp_path / "runs", device="cpu")))

    train_in("old")
    events = train_in("new")
    assert "already trained" in events
    assert f"{tmp_path}/old/rows.jsonl -> {tmp_path}/new/rows.jsonl" in events
    (tmp_path / "new/rows.jsonl").write_text(lines.replace("a b", "a c"))
    message = "the training data has changed since this run was trained; restore it, start over with"
    for folder in ("other", "new"):
        with pytest.raises(errors.DataError, match=message):
            train_in(folder)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("replacement", ["nothing", "empty folder", "another run", "copy"])
def test_moving_a_run_during_training_raises(tmp_path: Path, replacement: str) -> None:
    """Nothing is written to a new folder of the same name, and a run that is moved back resumes."""
    (tmp_path / "other").mkdir()
    session(tmp_path / "other", log_every=1)
    run, moved = tmp_path / "runs/small/base/seed-1", tmp_path / "moved"
    before = dict[Path, bytes | bool]()

    def contents() -> dict[Path, bytes | bool]:
        return {path: path.is_file() and path.read_bytes() for path in run.rglob("*")}

    def move(event: Event) -> None:
        if not isinstance(event, SavedEvent) or moved.exists():
            return
        run.rename(moved)
        if replacement == "empty folder":
            run.mkdir(parents=True)
        elif replacement != "nothing":
            shutil.copytree(moved if replacement == "copy" else open_run(tmp_path / "other").path, run)
        before.update(contents())

    with pytest.raises(errors.OutputPathError, match=r"seed-1: was moved or removed while .* move it back"):
        session(tmp_path, log_every=1, valid_every=2, watch=move)
    assert contents() == before
    if replacement == "nothing":
        moved.rename(run)
        session(tmp_path, log_every=1, valid_every=2)
        assert Run.open(run).finished


def test_weights_of_a_run_in_training_raise(tmp_path: Path) -> None:
    def read(event: Event) -> None:
        if isinstance(event, SavedEvent):
            with pytest.raises(errors.MissingInputError, match="seed-1: is being trained; its weights"):
                open_run(tmp_path).weights()
            raise StopTraining

    session(tmp_path, valid_every=2, watch=read)
    with pytest.raises(errors.MissingInputError, match="seed-1: training is not finished"):
        open_run(tmp_path).weights()


def test_signal_stops_the_preparation_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training a tokenizer is one long call of a library."""
    released = threading.Event()
    monkeypatch.setattr("attnkit.experiment.experiment.prepare", lambda *_, **__: released.wait(60))
    sender = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    sender.start()
    start = time.monotonic()
    with pytest.raises(errors.StoppedError, match="stopped by SIGTERM while preparing the data"):
        session(tmp_path)
    assert time.monotonic() - start < 30
    released.set()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["attnkit.data.tokenizer.Tokenizer.save", "attnkit.runs.Run.write_tokenizer"])
def test_tokenizer_that_could_not_be_written_is_written_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Without it, the run is trained to its end but cannot be scored."""
    (tmp_path / "first").mkdir()
    session(tmp_path / "first")  # stores the tokenizer in the cache
    with monkeypatch.context() as patch:
        patch.setattr(place, Mock(side_effect=errors.OutputError("no space")))
        with pytest.raises(errors.OutputError, match="no space"):
            session(tmp_path)
    session(tmp_path)
    assert open_run(tmp_path).scores()


def test_last_weights_are_kept_if_averaging_is_disabled(tmp_path: Path) -> None:
    """The old average was kept, and measured again at every validation."""
    session(tmp_path, average=3, valid_every=1)
    session(tmp_path, average=1, valid_every=1, steps=7, allow_change=True)
    run = open_run(tmp_path)
    stored, _ = checkpoint.load(run.checkpoints / "step-7", prefix="model.")
    for name, tensor in run.weights().items():
        assert torch.equal(tensor, stored[f"model.{name}"])


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"monitor": "accuracy"}, {"choose": "best"}])
def test_best_value_is_reset_if_its_measure_changes(tmp_path: Path, change: Any) -> None:
    session(tmp_path, valid_every=1, lr=1e-9)
    session(tmp_path, valid_every=1, lr=1e-9, steps=7, allow_change=True, **change)
    run = open_run(tmp_path)
    assert run.manifest.finished.step in (6, 7)
    counters = checkpoint.load(run.checkpoints / "step-7")[1]["counters"]
    assert counters["best_step"] in (6, 7)
    assert counters["monitor"] == change.get("monitor", "loss")


def test_fewer_steps_than_done_raise(tmp_path: Path) -> None:
    fourth = stop_at(lambda event: isinstance(event, SavedEvent) and event.step == 4)
    session(tmp_path, steps=50, save_every=4, watch=fourth)
    with pytest.raises(errors.RecipeError, match="train.steps: 3, but the run is at step 4; set at least 4"):
        session(tmp_path, steps=3, allow_change=True)


@pytest.mark.slow
def test_training_without_checkpoints_starts_over_and_clears_changes(tmp_path: Path) -> None:
    session(tmp_path)
    session(tmp_path, steps=7, allow_change=True)
    shutil.rmtree(open_run(tmp_path).checkpoints)
    session(tmp_path, steps=9, allow_change=True)
    assert open_run(tmp_path).manifest.changes == []
