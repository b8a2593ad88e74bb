"""Sessions: what becomes of a run that is there already."""

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.events import StopTraining, record_events, stop_at
from helpers.small import small_recipe, write_corpus

from attnkit.errors import (
    AttnkitError,
    DataError,
    DivergedError,
    MissingInputError,
    OutputError,
    OutputPathError,
    RecipeError,
    StoppedError,
)
from attnkit.experiment.experiment import Experiment, RunTraining
from attnkit.experiment.resumption import allowed_changes, needs_updates
from attnkit.experiment.settings import TrainingSettings
from attnkit.experiment.training import train
from attnkit.memory import reset_peak_memory
from attnkit.recipe import RecipeFile, load
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


def session(folder: Path, model: dict[str, Any] | None = None, **more: Any) -> list[Event]:
    """All events of a session of the small recipe, with settings of `train` or `model` changed."""
    watch = more.pop("watch", ignore)
    options = {key: more.pop(key) for key in ("fresh", "allow_change") if key in more}
    recipe = small_recipe(write_corpus(folder), **{"steps": 5} | more)
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update=model or {})})
    file = RecipeFile("small", folder / "small.yaml", {"base": recipe}, None, {})
    settings = TrainingSettings(file=file, out=folder / "runs", device="cpu", **options)
    return record_events(train, settings, watch=watch)


def texts(events: list[Event]) -> str:
    return "\n".join(str(event) for event in events)


def files(folder: Path) -> dict[str, bytes]:
    """What a finished run is made of."""
    run = folder / "runs/small/base/seed-1"
    names = ("manifest.json", "recipe.yaml", "model.safetensors", "scores.json", "metrics.jsonl")
    return {name: (run / name).read_bytes() for name in names}


def test_a_fresh_start_without_data_leaves_the_old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--fresh removed the run first, and then found that there was nothing to train on."""
    session(tmp_path)
    before = files(tmp_path)
    monkeypatch.setattr("attnkit.experiment.experiment.prepare", lambda *_, **__: _raise(MissingInputError("no data")))
    with pytest.raises(MissingInputError, match="no data"):
        session(tmp_path, fresh=True)
    assert files(tmp_path) == before


def _raise(error: AttnkitError) -> None:
    raise error


def test_a_fresh_start_clears_what_is_left_of_a_run_without_manifest(tmp_path: Path) -> None:
    """It was refused with the advice to use --fresh, which it had."""
    session(tmp_path)
    (tmp_path / "runs/small/base/seed-1/manifest.json").unlink()
    session(tmp_path, fresh=True)
    assert Run.open(tmp_path / "runs/small/base/seed-1").finished


def test_a_change_that_does_not_fit_the_checkpoint_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    """--allow-change stored the wider recipe and took back `finished` before it met the weights."""
    session(tmp_path)
    before = files(tmp_path)
    with pytest.raises(DataError, match="does not fit"):
        session(tmp_path, model={"width": 32}, steps=7, allow_change=True)
    assert files(tmp_path) == before


def test_an_allowed_change_is_told_stored_and_followed(tmp_path: Path) -> None:
    session(tmp_path)
    told = texts(session(tmp_path, steps=7, allow_change=True))
    assert "train.steps: 5 -> 7" in told
    run = Run.open(tmp_path / "runs/small/base/seed-1")
    assert (run.recipe.train.steps, run.manifest.finished.updates) == (7, 7)


def test_an_allowed_change_of_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    """Its recipe said from then on what its weights were not trained by."""
    session(tmp_path)
    before = files(tmp_path)
    told = texts(session(tmp_path, lr=0.5, allow_change=True))
    assert "already trained; not changed: train.lr: 0.005 -> 0.5 (--fresh trains with the new values)" in told
    assert files(tmp_path) == before


def test_changes_during_training_are_kept_in_the_manifest(tmp_path: Path) -> None:
    session(tmp_path)
    session(tmp_path, steps=7, lr=0.5, allow_change=True)
    session(tmp_path, steps=9, lr=0.5, allow_change=True)
    run = Run.open(tmp_path / "runs/small/base/seed-1")
    changes = [change.model_dump() for change in run.manifest.changes]
    assert changes == [
        {"step": 5, "key": "train.steps", "old": "5", "new": "7"},
        {"step": 5, "key": "train.lr", "old": "0.005", "new": "0.5"},
        {"step": 7, "key": "train.steps", "old": "7", "new": "9"},
    ]
    result = side_by_side(saved_rows(run), {})
    assert result.json()["rows"][0]["changes"] == changes
    notes = comparison_table(result).notes
    assert any(
        note.startswith("changed after training began: train.steps 5 -> 7 after step 5, train.lr") for note in notes
    )


def test_what_would_be_done_is_what_is_done(tmp_path: Path) -> None:
    """--dry-run called refused runs `done`."""
    data = write_corpus(tmp_path)
    run = Run(tmp_path / "runs/small/base/seed-1")

    def state(fresh: bool = False, allow_change: bool = False, **changes: Any) -> Any:
        recipe = small_recipe(data, **{"steps": 5, **changes})
        file = RecipeFile("small", tmp_path / "small.yaml", {"base": recipe}, None, {})
        how = {"out": tmp_path / "runs", "fresh": fresh, "allow_change": allow_change}
        experiment = Experiment(TrainingSettings(file=file, **how), StopSignals(), ignore)
        return RunTraining(experiment, "base", 1).state()

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
def test_a_run_that_ended_by_patience_goes_on_with_more_of_it(
    tmp_path: Path, before: int, now: int, expected: bool
) -> None:
    session(tmp_path, patience=before)
    run = Run.open(tmp_path / "runs/small/base/seed-1")
    run.update(finished={"reason": "patience"})
    then = "resume" if expected else "keep"
    train = run.recipe.train.model_copy(update={"patience": now, "steps": 50})
    recipe = run.recipe.model_copy(update={"train": train})
    assert needs_updates(run, recipe, allowed_changes(run, recipe, allow=True)) == expected
    with pytest.raises(RecipeError, match=f"--allow-change to {then} it"):
        allowed_changes(run, recipe, allow=False)


def test_a_run_goes_on_in_the_precision_that_it_is_told(tmp_path: Path) -> None:
    """The recipe said bf16 from then on, but the updates stayed in fp32."""
    session(tmp_path)
    told = session(tmp_path, steps=7, precision="bf16", allow_change=True)
    assert "precision='bf16'" in texts(told)
    assert Run.open(tmp_path / "runs/small/base/seed-1").manifest.precision == "bf16"


@pytest.mark.slow
@pytest.mark.parametrize("names", [("fixed",), ("fixed", "free", "other")])
def test_a_variant_that_names_its_precision_decides_for_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """What came first decided for those that say auto, without a measurement."""
    asked = []
    monkeypatch.setattr("attnkit.experiment.cost.choose_precision", lambda *_: asked.append(1) or ("fp32", "measured"))
    folder = write_corpus(tmp_path)
    kinds = {"fixed": "bf16", "free": "auto", "other": "auto"}
    made = {name: small_recipe(folder, steps=2, precision=kind) for name, kind in kinds.items()}
    file = RecipeFile("small", tmp_path / "small.yaml", made, None, {})
    for chosen in (names, tuple(kinds)):  # in one session, and in a second one
        record_events(train, TrainingSettings(file=file, out=tmp_path / "runs", device="cpu", variants=chosen))
    runs = {name: Run.open(tmp_path / f"runs/small/{name}/seed-1") for name in kinds}
    found = {name: run.manifest.precision for name, run in runs.items()}
    assert found == {"fixed": "bf16", "free": "fp32", "other": "fp32"}
    assert len(asked) == 1


def test_a_validation_that_is_not_finite_is_a_training_that_diverged(tmp_path: Path) -> None:
    """It ended with code 65, "its weights are damaged", when validation came before an update."""
    with pytest.raises(DivergedError, match=r"^step 1: .* in the validation; .*lower train\.lr"):
        session(tmp_path, lr=1e30, warmup=1, valid_every=1)
    run = Run.open(tmp_path / "runs/small/base/seed-1")
    assert "in the validation" in run.manifest.failed
    session(tmp_path, lr=1e-3, allow_change=True, fresh=True)
    assert Run.open(run.path).manifest.failed is None


def test_a_run_knows_the_variants_of_its_recipe(tmp_path: Path) -> None:
    session(tmp_path)
    assert Run.open(tmp_path / "runs/small/base/seed-1").manifest.variants == ["base"]


def published_session(folder: Path, figures: Published | None) -> Run:
    """Train, or skip, with these figures in the recipe file."""
    recipe = small_recipe(write_corpus(folder), steps=2)
    file = RecipeFile("small", folder / "small.yaml", {"base": recipe}, None, {}, figures)
    record_events(train, TrainingSettings(file=file, out=folder / "runs", device="cpu"))
    return Run.open(folder / "runs/small/base/seed-1")


def test_runs_keep_the_published_figures_that_the_recipe_file_last_stated(tmp_path: Path) -> None:
    """They reach `attnkit eval RUN` so; a change of them is no changed recipe."""
    first, second = (
        Published(source=source, comparable=False, why="x", scores={"base": {"bleu": 27.0}})
        for source in ("one", "two")
    )
    run = published_session(tmp_path, first)
    assert run.manifest.published["source"] == "one"
    hashes = run.manifest.hashes
    run = published_session(tmp_path, second)
    assert run.manifest.hashes == hashes
    assert [one.json() for one in PublishedFigures.of_runs([run, run])] == [
        {
            "recipe": "small",
            "source": "two",
            "comparable": False,
            "why": "x",
            "split": None,
            "scores": {"base": {"bleu": 27.0}},
        }
    ]
    assert published_session(tmp_path, None).manifest.published is None
    run.update(published={"source": 5})
    with pytest.raises(DataError, match=r"manifest.json: published: source must be a valid str"):
        PublishedFigures.of_runs([run])


def test_every_training_of_a_process_has_its_own_peak_memory(tmp_path: Path) -> None:
    """The highest size of a process is that of its whole life: the second one has less."""
    if reset_peak_memory("cpu") is None:
        pytest.skip("this system does not tell")
    peaks = []
    for name, size in (("large", 300), ("small", 0)):
        held = torch.ones(size, 2**18)  # [size] MiB
        recipe = small_recipe(write_corpus(tmp_path), steps=2)
        file = RecipeFile(name, tmp_path / f"{name}.yaml", {"base": recipe}, None, {})
        record_events(train, TrainingSettings(file=file, out=tmp_path / "runs", device="cpu"))
        del held
        run = Run.open(tmp_path / f"runs/{name}/base/seed-1")
        peaks.append(run.manifest.finished.peak_memory_bytes)
    assert peaks[0] - peaks[1] > 200 * 2**20


def test_a_system_that_does_not_tell_its_memory_leaves_it_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnkit.train.fit.reset_peak_memory", lambda _: None)
    run = published_session(tmp_path, None)
    assert run.manifest.finished.peak_memory_bytes is None


def test_data_may_move_but_not_change(tmp_path: Path) -> None:
    """A finished run is skipped where its files have moved, and refused where they differ."""
    tmp_path /= "a_long_name_of_a_folder_" * 5  # two long paths are told apart
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

    def again(folder: str) -> str:
        file = load(tmp_path / folder / "r.yaml")
        return texts(record_events(train, TrainingSettings(file=file, out=tmp_path / "runs", device="cpu")))

    again("old")
    told = again("new")
    assert "already trained" in told
    assert f"{tmp_path}/old/rows.jsonl -> {tmp_path}/new/rows.jsonl" in told
    changed = "the training data has changed since this run was trained; restore it, start over with"
    with pytest.raises(DataError, match=changed):
        again("other")
    (tmp_path / "new/rows.jsonl").write_text(lines.replace("a b", "a c"))
    with pytest.raises(DataError, match=changed):
        again("new")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fate", ["moved", "replaced", "of another run", "a copy"])
def test_a_folder_that_goes_away_during_its_training_ends_it_in_one_line(tmp_path: Path, fate: str) -> None:
    """Nothing is written to another folder of that name, and the one that was moved resumes."""
    (tmp_path / "other").mkdir()
    session(tmp_path / "other", log_every=1)
    run, moved = tmp_path / "runs/small/base/seed-1", tmp_path / "moved"
    before = dict[Path, bytes | bool]()

    def move(event: Event) -> None:
        if not isinstance(event, SavedEvent) or moved.exists():
            return
        run.rename(moved)
        if fate == "replaced":
            run.mkdir(parents=True)
        elif fate == "of another run":
            shutil.copytree(tmp_path / "other/runs/small/base/seed-1", run)
        elif fate == "a copy":
            shutil.copytree(moved, run)
        before.update({path: path.is_file() and path.read_bytes() for path in run.rglob("*")})

    with pytest.raises(OutputPathError, match=r"seed-1: was moved or removed while .* move it back"):
        session(tmp_path, log_every=1, valid_every=2, watch=move)
    assert before == {path: path.is_file() and path.read_bytes() for path in run.rglob("*")}
    if fate == "moved":
        moved.rename(run)
        session(tmp_path, log_every=1, valid_every=2)
        assert Run.open(run).finished


def test_a_run_that_is_being_trained_says_so(tmp_path: Path) -> None:

    def look(event: Event) -> None:
        if isinstance(event, SavedEvent):
            with pytest.raises(MissingInputError, match="seed-1: is being trained; its weights"):
                Run.open(tmp_path / "runs/small/base/seed-1").weights()
            raise StopTraining

    session(tmp_path, valid_every=2, watch=look)
    with pytest.raises(MissingInputError, match="seed-1: training is not finished"):
        Run.open(tmp_path / "runs/small/base/seed-1").weights()


def test_a_signal_is_obeyed_while_a_library_prepares_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning a tokenizer takes long and reports nothing."""
    released = threading.Event()
    monkeypatch.setattr("attnkit.experiment.experiment.prepare", lambda *_, **__: released.wait(60))
    sender = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    sender.start()
    start = time.monotonic()
    with pytest.raises(StoppedError, match="stopped by SIGTERM while preparing the data"):
        session(tmp_path)
    assert time.monotonic() - start < 30
    released.set()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["attnkit.data.tokenizer.Tokenizer.save", "attnkit.runs.Run.write_tokenizer"])
def test_a_run_whose_tokenizer_could_not_be_written_gets_it_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Otherwise it is trained to its end, and then cannot be scored."""

    def full(*_: Any) -> None:
        raise OutputError("no space")

    (tmp_path / "first").mkdir()
    session(tmp_path / "first")  # from now on the tokenizer is in the cache
    with monkeypatch.context() as patch:
        patch.setattr(place, full)
        with pytest.raises(OutputError, match="no space"):
            session(tmp_path)
    session(tmp_path)
    assert Run.open(tmp_path / "runs/small/base/seed-1").scores()


def test_without_an_average_any_more_the_weights_are_the_last_ones(tmp_path: Path) -> None:
    """The old average was kept, and measured again at every validation."""
    session(tmp_path, average=3, valid_every=1)
    session(tmp_path, average=1, valid_every=1, steps=7, allow_change=True)
    run = Run.open(tmp_path / "runs/small/base/seed-1")
    stored, _ = checkpoint.load(run.checkpoints / "step-7", prefix="model.")
    for name, tensor in run.weights().items():
        assert torch.equal(tensor, stored[f"model.{name}"])


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"monitor": "accuracy"}, {"choose": "best"}])
def test_a_best_value_of_other_measures_is_forgotten(tmp_path: Path, change: Any) -> None:
    session(tmp_path, valid_every=1, lr=1e-9)
    session(tmp_path, valid_every=1, lr=1e-9, steps=7, allow_change=True, **change)
    run = Run.open(tmp_path / "runs/small/base/seed-1")
    assert run.manifest.finished.step in (6, 7)
    counters = checkpoint.load(run.checkpoints / "step-7")[1]["counters"]
    assert counters["best_step"] in (6, 7)
    assert counters["monitor"] == change.get("monitor", "loss")


def test_fewer_updates_than_are_done_are_refused(tmp_path: Path) -> None:
    fourth = stop_at(lambda event: isinstance(event, SavedEvent) and event.step == 4)
    session(tmp_path, steps=50, save_every=4, watch=fourth)
    with pytest.raises(RecipeError, match="train.steps: 3, but the run is at step 4; set at least 4"):
        session(tmp_path, steps=3, allow_change=True)


@pytest.mark.slow
def test_changes_are_forgotten_by_a_training_that_begins_anew(tmp_path: Path) -> None:
    session(tmp_path)
    session(tmp_path, steps=7, allow_change=True)
    run = Run.open(tmp_path / "runs/small/base/seed-1")
    shutil.rmtree(run.checkpoints)
    session(tmp_path, steps=9, allow_change=True)
    assert Run.open(run.path).manifest.changes == []
