"""Values chosen for each row by trials: the plan, the choice, and what becomes of the runs."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.events import record_events
from helpers.small import write_corpus
from hypothesis import given
from hypothesis import strategies as st

from attnkit.errors import DivergedError, RecipeError
from attnkit.experiment import training, tuning
from attnkit.experiment.settings import TrainingSettings, recorded_values
from attnkit.recipe import load
from attnkit.recipe.schema import TrainConfig
from attnkit.runs import Run, find_runs
from attnkit.train import events

RECIPE = """\
task: translation
data: {{train: {train}, valid: {valid}, test: {test}, max_length: 32}}
tokenizer: {{type: word, size: 40}}
model: {{width: 16, heads: 2, layers: 1, ff: 32}}
train: {{steps: 8, batch_tokens: 56, lr: 1e-3, warmup: 4, valid_every: 4, precision: fp32,
        seeds: [3, 4], clip: 0}}
search: {{method: greedy, max_length: 12}}
eval: {{bootstrap: 0}}
variants: {{one: {{}}, two: {{model.attention: linear}}}}
"""
WORD = "train.lr=1e-3,1e-2"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    data = write_corpus(tmp_path, 20)
    files = {split: json.dumps(getattr(data, split)) for split in ("train", "valid", "test")}
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE.format(**files))
    return path


def loader(path: Path, *words: str) -> tuning.Load:
    return lambda more: load(path, [*words, *more])


def planned(path: Path, word: str = WORD, steps: int | None = None, *words: str) -> tuning.Tuning:
    read = loader(path, *words)
    return tuning.Tuning.plan(read, word, list(read(()).variants), steps)


def session(path: Path, plan: tuning.Tuning, **more: Any) -> list[events.Event]:
    file = plan.load(())
    how: Any = {"file": file, "out": path.parent / "runs", "device": "cpu", "seeds": [3], **more}
    return record_events(tuning.train, TrainingSettings(**how), plan)


def run_of(path: Path, *parts: str, seed: int = 3) -> Run:
    return Run.open(path.parent.joinpath("runs/tiny", *parts, f"seed-{seed}"))


def test_each_row_gets_the_value_of_its_best_trial(recipe: Path) -> None:
    told = session(recipe, planned(recipe))
    for row in ("one", "two"):
        losses = {}
        for value in ("0.001", "0.01"):
            trial = run_of(recipe, row, "tune", f"train.lr={value}")
            assert trial.recipe.train.lr == float(value)
            assert trial.recipe.train.seeds == (3,)
            assert not (trial.path / "scores.json").exists()  # a test score must not be seen
            losses[value] = trial.log.records()[-1]["valid_loss"]
        best = min(losses, key=lambda value: losses[value])
        run = run_of(recipe, row)
        assert run.recipe.train.lr == float(best)
        entry = run.manifest.tuned
        assert (entry.key, entry.value, entry.seed) == ("train.lr", best, 3)
        assert {one.value: one.score for one in entry.trials} == losses
        notes = [e.text for e in told if isinstance(e, events.NoteEvent) and e.variant == row]
        tried = ", ".join(f"{value}: validation loss {loss:.3f}" for value, loss in losses.items())
        assert f"chose train.lr={best} ({tried})" in notes
    rows = told[-1].comparison.rows  # type: ignore[attr-defined]
    assert [(row.variant, row.system.tuned.key) for row in rows] == [("one", "train.lr"), ("two", "train.lr")]
    names = [run.variant for run in find_runs([recipe.parent / "runs"])]
    assert names == ["one", "two"]  # trials are no rows
    assert len(find_runs([recipe.parent / "runs"], trials=True)) == 6
    assert len(find_runs([recipe.parent / "runs/tiny/one/tune"])) == 2


@pytest.mark.slow
def test_a_second_session_trains_nothing_and_a_third_without_trials_goes_on(recipe: Path) -> None:
    session(recipe, planned(recipe))
    again = session(recipe, planned(recipe))
    assert not [e for e in again if isinstance(e, events.StartedEvent)]
    assert sum(isinstance(e, events.SkippedEvent) for e in again) == 6
    file = load(recipe)
    found = recorded_values(file, ["one", "two"], [], recipe.parent / "runs")
    file = load(recipe, [f"variants.{row}.{one.key}={one.value}" for row, one in found.items()])
    how: Any = {"out": recipe.parent / "runs", "device": "cpu", "tuned": found}
    told = record_events(training.train, TrainingSettings(file=file, seeds=[3, 4], **how))
    started = [e.seed for e in told if isinstance(e, events.StartedEvent)]
    assert started == [4, 4]
    assert run_of(recipe, "two", seed=4).manifest.tuned == run_of(recipe, "two").manifest.tuned


@pytest.mark.slow
def test_a_recorded_value_does_not_hide_a_change_of_the_recipe(recipe: Path) -> None:
    session(recipe, planned(recipe))
    out = recipe.parent / "runs"
    same = partial(recorded_values, names=["one"], out=out)
    assert same(load(recipe), overrides=[])
    assert not same(load(recipe, ["train.lr=0.5"]), overrides=["train.lr=0.5"])
    assert not same(load(recipe), overrides=["variants.one.train.lr=0.001"])
    recipe.write_text(recipe.read_text().replace("lr: 1e-3", "lr: 2e-3"))
    assert not same(load(recipe), overrides=[])


@pytest.mark.slow
def test_runs_without_trials_are_refused_unless_their_value_is_among_them(recipe: Path) -> None:
    how: Any = {"out": recipe.parent / "runs", "device": "cpu", "seeds": [3], "variants": ["one"]}
    record_events(training.train, TrainingSettings(file=load(recipe, ["train.lr=0.5"]), **how))
    with pytest.raises(RecipeError, match=r"another recipe \(train\.lr: 0\.5 -> 0\.0"):
        session(recipe, planned(recipe), variants=["one"])
    session(recipe, planned(recipe), variants=["one"], fresh=True)
    assert run_of(recipe, "one").manifest.tuned.value in ("0.001", "0.01")


@pytest.mark.slow
def test_a_trial_that_diverges_loses_and_is_not_repeated(recipe: Path) -> None:
    word = "train.lr=1e-2,1e30"
    told = session(recipe, planned(recipe, word), variants=["one", "two"])
    (first, _) = failed = [e for e in told if isinstance(e, events.FailedEvent)]
    assert [(e.variant, e.code) for e in failed] == [("one,lr=1e+30", 3), ("two,lr=1e+30", 3)]
    entry = run_of(recipe, "one").manifest.tuned
    assert (entry.value, entry.trials[1].value) == ("0.01", "1e+30")
    assert entry.trials[1].diverged == first.reason
    again = session(recipe, planned(recipe, word))
    assert not [e for e in again if isinstance(e, events.FailedEvent | events.StartedEvent)]
    assert "diverged before" in {e.reason for e in again if isinstance(e, events.SkippedEvent)}


def test_where_all_trials_diverge_nothing_else_is_trained(recipe: Path) -> None:
    with pytest.raises(DivergedError, match=r"one: every trial of train\.lr diverged \(1e\+30, 1e\+"):
        session(recipe, planned(recipe, "train.lr=1e30,1e31"))
    assert not (recipe.parent / "runs/tiny/one/seed-3").exists()


@pytest.mark.parametrize(
    ("monitor", "scores", "best"),
    [
        ("loss", [(3, 3), (2, 2), (2, 2)], 1),
        ("bleu", [(0, 9), (0, 8), (0, 8.5)], 1),
        ("bleu", [(1, 5), (2, 9), (None, None)], 1),
        ("ter", [(80, 1), (70, 9), (70, 8)], 2),
    ],
)
def test_the_choice_is_by_the_monitor_then_by_the_loss_then_by_the_order(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, monitor: str, scores: Any, best: int
) -> None:
    values = ["0.001", "0.002", "0.003"]
    plan = planned(recipe, f"train.lr={','.join(values)}", None, f"train.monitor={monitor}")
    by_value = dict(zip(values, scores, strict=True))
    monkeypatch.setattr(Run, "open", Run)
    monkeypatch.setattr(
        tuning,
        "_outcome",
        lambda run, value: tuning.TunedTrial(
            value=value,
            score=by_value[value][0],
            loss=by_value[value][1],
            diverged=None if by_value[value][1] else "NaN",
        ),
    )
    how = TrainingSettings(file=plan.file, out=recipe.parent, trials=plan.trials)
    assert plan.entry(how, "two").value == values[best]


def test_rows_that_a_word_fixes_and_single_rows_are_left_alone(recipe: Path) -> None:
    fixed = planned(recipe, WORD, None, "variants.one.train.lr=5e-4")
    assert list(fixed.rows) == ["two"]
    single = planned(recipe, "variants.two.model.attention.encoder.features=4,8")
    assert list(single.rows) == ["two"]
    assert [trial.folder for trial in single.trials.values()] == [
        "model.attention.encoder.features=4",
        "model.attention.encoder.features=8",
    ]
    assert single.rows["two"]["8"] == "variants.two.model.attention.encoder.features=8"


def test_data_without_validation_is_refused(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus card may lack the split; files of one's own are refused when the recipe is read."""
    monkeypatch.setattr(tuning, "splits_of", lambda data: ("train", "test"))
    with pytest.raises(RecipeError, match="the data of one has no valid split"):
        planned(recipe)


@given(
    steps=st.integers(1, 10_000), share=st.floats(0.0001, 1), warmup=st.integers(0, 20_000), every=st.integers(0, 5000)
)
def test_a_shortened_schedule_keeps_its_proportions(steps: int, share: float, warmup: int, every: int) -> None:
    train = TrainConfig(steps=steps, warmup=warmup, valid_every=every, log_every=7, patience=3)
    fewer = max(1, int(steps * share))
    short = tuning.shortened(train, fewer)
    assert short.steps == fewer
    for name in ("warmup", "valid_every", "save_every", "log_every"):
        long, cut = getattr(train, name), getattr(short, name)
        assert (cut == 0) == (long == 0)
        assert cut <= long
        assert cut <= 1 or abs(cut / fewer - long / steps) <= 0.5 / fewer + 1e-9
    assert (short.lr, short.patience) == (train.lr, train.patience)
    assert tuning.shortened(train, None) == tuning.shortened(train, steps) == train


@pytest.mark.slow
def test_trials_start_from_the_weights_of_their_row(recipe: Path) -> None:
    """`train.init` matches variants by name, and a trial has another."""
    how: Any = {"out": recipe.parent / "runs", "device": "cpu", "seeds": [3]}
    record_events(training.train, TrainingSettings(file=load(recipe), **how))
    tuned = recipe.with_name("tuned.yaml")
    shutil.copy(recipe, tuned)
    init = f"train.init={recipe.parent / 'runs/tiny'}"
    told = session(tuned, planned(tuned, WORD, 4, init))
    assert isinstance(told[-1], events.ScoredEvent)
    trial = Run.open(recipe.parent / "runs/tuned/two/tune/train.lr=0.01/seed-3")
    assert trial.manifest.init.variant == "two"
    assert trial.recipe.train.warmup == 2


def test_a_variant_may_be_called_tune(recipe: Path) -> None:
    """Only what the manifest calls a trial is one."""
    recipe.write_text(recipe.read_text().replace("one: {{}}", "tune: {{}}").replace("one:", "tune:"))
    folder = recipe.parent / "tune"
    folder.mkdir()
    moved = Path(shutil.copy(recipe, folder / "tune.yaml"))
    how: Any = {"out": recipe.parent / "runs", "device": "cpu", "seeds": [3]}
    record_events(training.train, TrainingSettings(file=load(moved), **how))
    names = [run.variant for run in find_runs([recipe.parent / "runs"])]
    assert names == ["tune", "two"]
