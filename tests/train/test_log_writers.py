"""Tests of logging to TensorBoard, Weights & Biases and Trackio, with and without the packages."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from helpers.trained import make_run

from attnkit.errors import UnavailableError
from attnkit.recipe import Recipe, load
from attnkit.runs import Run
from attnkit.train import log_writers
from attnkit.train.log_writers import LogWriters


class FakeWriter:
    """Stands in for the writers of the three packages, and records the calls."""

    opened: "list[FakeWriter]"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments, self.options, self.logged, self.closed = arguments, options, {}, 0
        FakeWriter.opened.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.logged.setdefault(step, {})[name] = value

    def log(self, scalars: dict[str, float], step: int) -> None:
        self.logged[step] = dict(scalars)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[FakeWriter]:
    """Replace the three packages, and return the list of the writers opened."""
    for name in ("wandb", "trackio", "torch.utils.tensorboard"):
        module: Any = ModuleType(name)
        module.SummaryWriter = module.init = FakeWriter
        module.Settings = SimpleNamespace
        module.finish = lambda: FakeWriter.opened[-1].close()
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    FakeWriter.opened = []
    return FakeWriter.opened


def logging_to(run: Run, *names: str) -> Recipe:
    train = run.recipe.train.model_copy(update={"log_to": names})
    return run.recipe.model_copy(update={"train": train})


@pytest.mark.parametrize("name", log_writers.OPENERS)
def test_numbers_of_a_record_are_logged(name: str, tmp_path: Path, opened: list[FakeWriter]) -> None:
    run = make_run(tmp_path)
    writers = LogWriters(run, logging_to(run, name), None)
    writers.add("train", {"step": 7, "loss": 2.5, "lr": 1e-3, "monitor": "bleu"})
    writers.close()
    [writer] = opened
    assert (writer.logged, writer.closed) == ({7: {"train/loss": 2.5, "train/lr": 1e-3}}, 1)


def test_resumed_training_continues_the_same_curves(tmp_path: Path, opened: list[FakeWriter]) -> None:
    run = make_run(tmp_path)
    recipe = logging_to(run, *log_writers.OPENERS)
    LogWriters(run, recipe, None)
    (run.path / "tensorboard").mkdir()
    LogWriters(Run.open(run.path), recipe, 100)
    first, resumed = ([writer.options for writer in part] for part in (opened[:3], opened[3:]))
    assert [first[0], resumed[0]] == [{"purge_step": None}, {"purge_step": 101}]
    assert opened[0].arguments == (str(run.path / "tensorboard"),)
    for before, after in zip(first[1:], resumed[1:], strict=True):
        assert after == before
        assert after["resume"] == "allow"
        assert (after["project"], after["group"]) == ("toy", "base")
    assert (first[1]["mode"], first[1]["dir"]) == ("offline", str(run.path))
    assert first[1]["id"] in first[2]["name"]
    LogWriters(make_run(tmp_path, seed=2), recipe, None)
    assert opened[7].options["id"] != first[1]["id"]


@pytest.mark.parametrize("name", log_writers.OPENERS)
def test_missing_package_raises(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)
    monkeypatch.setitem(sys.modules, name, None)
    message = rf"train.log_to: {name} is not installed: pip install 'attnkit\[{name}\]'"
    with pytest.raises(UnavailableError, match=message):
        log_writers.check_installed(logging_to(run, name))
    log_writers.check_installed(run.recipe)


def test_bare_folder_is_not_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "no_package").mkdir()
    assert not log_writers.installed("no_package")


def test_error_of_a_package_is_reported_in_one_line(
    tmp_path: Path, opened: list[FakeWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise ValueError("no\nkey")

    monkeypatch.setattr(sys.modules["wandb"], "init", fail)
    run = make_run(tmp_path)
    with pytest.raises(UnavailableError, match=r"wandb cannot be used: ValueError: no key"):
        LogWriters(run, logging_to(run, "wandb"), None)


@pytest.mark.parametrize(("value", "names"), [("true", ("tensorboard",)), ("false", ())])
def test_old_key_tensorboard_sets_log_to(value: str, names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"task: translation\ndata: {{corpus: toy-translation}}\ntrain: {{tensorboard: {value}}}\n")
    assert load(path).variants["base"].train.log_to == names


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="the extra tensorboard is not installed")
def test_tensorboard_reads_the_curves_of_a_resumed_training(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = make_run(tmp_path)
    for resumed, steps in ((None, (10, 20, 30)), (20, (30, 40))):
        writers = LogWriters(run, logging_to(run, "tensorboard"), resumed)
        for step in steps:
            writers.add("valid", {"step": step, "loss": step / (2 if resumed else 1)})
        writers.close()
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    values = [(event.step, event.value) for event in events.Scalars("valid/loss")]
    assert values == [(10, 10), (20, 20), (30, 15), (40, 20)]
