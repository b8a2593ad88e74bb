"""Tests of tuning (values that trials choose for each row): the plan, the choice, existing runs."""

import shutil
from collections.abc import Sequence
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
from attnkit.recipe import RecipeFile, load
from attnkit.recipe.schema import TrainConfig
from attnkit.runs import Run, find_runs
from attnkit.train import events

RECIPE = """\
task: translation
data: {train: [train.source, train.target], valid: [valid.source, valid.target],
       test: [test.source, test.target], max_length: 32}
tokenizer: {type: word, size: 40}
model: {width: 16, heads: 2, layers: 1, ff: 32}
train: {steps: 8, batch_tokens: 56, lr: 1e-3, warmup: 4, valid_every: 4, precision: fp32, seeds: [3, 4], clip: 0}
search: {method: greedy, max_length: 12}
eval: {bootstrap: 0}
variants: {one: {}, two: {model.attention: linear}}
"""
WORD = "train.lr=1e-3,1e-2"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    write_corpus(tmp_path, 20)
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE)
    return path


def plan(path: Path, word: str = WORD, steps: int | None = None, *overrides: str) -> tuning.Tuning:
    def read(others: Sequence[str]) -> RecipeFile:
        return load(path, [*overrides, *others])

    return tuning.Tuning.plan(read, word, list(read(()).variants), steps)


def settings(path: Path, file: RecipeFile, **options: Any) -> TrainingSettings:
    out = path.parent / "runs"
    return TrainingSettings(file=file, **{"out": out, "device": "cpu", "seeds": [3], **options})


def tune(path: Path, planned: tuning.Tuning, **options: Any) -> list[events.Event]:
    return record_events(tuning.train, settings(path, planned.load(()), **options), planned)


def train(path: Path, *overrides: str, **options: Any) -> list[events.Event]:
    """Train a recipe without trials."""
    return record_events(training.train, settings(path, load(path, overrides), **options))


def of_kind(kind: Any, recorded: list[events.Event]) -> list[Any]:
    return [event for event in recorded if isinstance(event, kind)]


def open_run(path: Path, *parts: str, seed: int = 3) -> Run:
    return Run.open(path.parent.joinpath("runs/tiny", *parts, f"seed-{seed}"))


def test_each_row_gets_the_value_of_its_best_trial(recipe: Path) -> None:
    recorded = tune(recipe, plan(recipe))
    for row in ("one", "two"):
        losses = {}
        for value in ("0.001", "0.01"):
            trial = open_run(recipe, row, "tune", f"train.lr={value}")
            assert trial.recipe.train.lr == float(value)
            assert trial.recipe.train.seeds == (3,)
            assert not (trial.path / "scores.json").exists()  # trials must not see test scores
            losses[value] = trial.log.records()[-1]["valid_loss"]
        best = min(losses, key=losses.__getitem__)
        run = open_run(recipe, row)
        assert run.recipe.train.lr == float(best)
        entry = run.manifest.tuned
        assert (entry.key, entry.value, entry.seed) == ("train.lr", best, 3)
        assert {trial.value: trial.score for trial in entry.trials} == losses
        trials = ", ".join(f"{value}: validation loss {loss:.3f}" for value, loss in losses.items())
        notes = [event.text for event in of_kind(events.NoteEvent, recorded) if event.variant == row]
        assert f"chose train.lr={best} ({trials})" in notes
    rows = recorded[-1].comparison.rows
    assert [(row.variant, row.system.tuned.key) for row in rows] == [("one", "train.lr"), ("two", "train.lr")]
    runs = recipe.parent / "runs"
    assert [run.variant for run in find_runs([runs])] == ["one", "two"]  # trials are not rows
    assert len(find_runs([runs], trials=True)) == 6
    assert len(find_runs([runs / "tiny/one/tune"])) == 2


@pytest.mark.slow
def test_second_session_trains_nothing_and_new_seeds_use_recorded_values(recipe: Path) -> None:
    tune(recipe, plan(recipe))
    recorded = tune(recipe, plan(recipe))
    assert not of_kind(events.StartedEvent, recorded)
    assert len(of_kind(events.SkippedEvent, recorded)) == 6
    values = recorded_values(load(recipe), ["one", "two"], [], recipe.parent / "runs")
    overrides = [f"variants.{row}.{entry.key}={entry.value}" for row, entry in values.items()]
    recorded = train(recipe, *overrides, seeds=[3, 4], tuned=values)
    assert [event.seed for event in of_kind(events.StartedEvent, recorded)] == [4, 4]
    assert open_run(recipe, "two", seed=4).manifest.tuned == open_run(recipe, "two").manifest.tuned


@pytest.mark.slow
def test_recorded_value_is_not_used_if_the_recipe_changes(recipe: Path) -> None:
    tune(recipe, plan(recipe))
    find = partial(recorded_values, names=["one"], out=recipe.parent / "runs")
    assert find(load(recipe), overrides=[])
    assert not find(load(recipe, ["train.lr=0.5"]), overrides=["train.lr=0.5"])
    assert not find(load(recipe), overrides=["variants.one.train.lr=0.001"])
    recipe.write_text(recipe.read_text().replace("lr: 1e-3", "lr: 2e-3"))
    assert not find(load(recipe), overrides=[])


@pytest.mark.slow
def test_run_with_a_value_that_is_not_tried_raises(recipe: Path) -> None:
    train(recipe, "train.lr=0.5", variants=["one"])
    with pytest.raises(RecipeError, match=r"another recipe \(train\.lr: 0\.5 -> 0\.0"):
        tune(recipe, plan(recipe), variants=["one"])
    tune(recipe, plan(recipe), variants=["one"], fresh=True)
    assert open_run(recipe, "one").manifest.tuned.value in ("0.001", "0.01")


@pytest.mark.slow
def test_diverged_trial_is_not_chosen_and_not_repeated(recipe: Path) -> None:
    planned = plan(recipe, "train.lr=1e-2,1e30")
    failed = of_kind(events.FailedEvent, tune(recipe, planned, variants=["one", "two"]))
    assert [(event.variant, event.code) for event in failed] == [("one,lr=1e+30", 3), ("two,lr=1e+30", 3)]
    entry = open_run(recipe, "one").manifest.tuned
    assert (entry.value, entry.trials[1].value) == ("0.01", "1e+30")
    assert entry.trials[1].diverged == failed[0].reason
    recorded = tune(recipe, plan(recipe, "train.lr=1e-2,1e30"))
    assert not of_kind(events.FailedEvent | events.StartedEvent, recorded)
    assert "diverged before" in {event.reason for event in of_kind(events.SkippedEvent, recorded)}


def test_nothing_else_is_trained_if_all_trials_diverge(recipe: Path) -> None:
    with pytest.raises(DivergedError, match=r"one: every trial of train\.lr diverged \(1e\+30, 1e\+"):
        tune(recipe, plan(recipe, "train.lr=1e30,1e31"))
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
def test_choice_is_by_monitor_then_loss_then_order(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, monitor: str, scores: Any, best: int
) -> None:
    values = ["0.001", "0.002", "0.003"]

    def outcome(run: Run, value: str) -> tuning.TunedTrial:
        score, loss = scores[values.index(value)]
        return tuning.TunedTrial(value=value, score=score, loss=loss, diverged=None if loss else "NaN")

    planned = plan(recipe, f"train.lr={','.join(values)}", None, f"train.monitor={monitor}")
    monkeypatch.setattr(Run, "open", Run)
    monkeypatch.setattr(tuning, "_outcome", outcome)
    assert planned.entry(settings(recipe, planned.file, trials=planned.trials), "two").value == values[best]


def test_rows_with_a_fixed_value_and_other_rows_are_not_tuned(recipe: Path) -> None:
    fixed = plan(recipe, WORD, None, "variants.one.train.lr=5e-4")
    assert list(fixed.rows) == ["two"]
    key = "model.attention.encoder.features"
    single = plan(recipe, f"variants.two.{key}=4,8")
    assert list(single.rows) == ["two"]
    assert [trial.folder for trial in single.trials.values()] == [f"{key}=4", f"{key}=8"]
    assert single.rows["two"]["8"] == f"variants.two.{key}=8"


def test_data_without_validation_split_raise(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus card may lack the split; a recipe with files but without the split raises when it is read."""
    monkeypatch.setattr(tuning, "splits_of", lambda data: ("train", "test"))
    with pytest.raises(RecipeError, match="the data of one has no valid split"):
        plan(recipe)


@given(
    steps=st.integers(1, 10_000), share=st.floats(0.0001, 1), warmup=st.integers(0, 20_000), every=st.integers(0, 5000)
)
def test_shortened_schedule_keeps_its_proportions(steps: int, share: float, warmup: int, every: int) -> None:
    train = TrainConfig(steps=steps, warmup=warmup, valid_every=every, log_every=7, patience=3)
    fewer = max(1, int(steps * share))
    short = tuning.shortened(train, fewer)
    assert short.steps == fewer
    for name in ("warmup", "valid_every", "save_every", "log_every"):
        before, after = getattr(train, name), getattr(short, name)
        assert (after == 0) == (before == 0)
        assert after <= before
        assert after <= 1 or abs(after / fewer - before / steps) <= 0.5 / fewer + 1e-9
    assert (short.lr, short.patience) == (train.lr, train.patience)
    assert tuning.shortened(train, None) == tuning.shortened(train, steps) == train


@pytest.mark.slow
def test_trials_start_from_the_weights_of_their_row(recipe: Path) -> None:
    """`train.init` finds variants by name, but the name of a trial differs from that of its row."""
    train(recipe)
    tuned = Path(shutil.copy(recipe, recipe.with_name("tuned.yaml")))
    recorded = tune(tuned, plan(tuned, WORD, 4, f"train.init={recipe.parent / 'runs/tiny'}"))
    assert isinstance(recorded[-1], events.ScoredEvent)
    trial = Run.open(recipe.parent / "runs/tuned/two/tune/train.lr=0.01/seed-3")
    assert trial.manifest.init.variant == "two"
    assert trial.recipe.train.warmup == 2


def test_recipe_and_variant_may_be_called_tune(recipe: Path) -> None:
    """Trials are recognized by the manifest, not by the name of their folder."""
    path = recipe.with_name("tune.yaml")
    path.write_text(recipe.read_text().replace("one:", "tune:"))
    train(path)
    assert [run.variant for run in find_runs([recipe.parent / "runs"])] == ["tune", "two"]
