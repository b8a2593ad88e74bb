"""What goes to TensorBoard, Weights & Biases and Trackio, with and without the extras."""

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

RECORD = {"step": 7, "loss": 2.5, "lr": 1e-3, "monitor": "bleu"}
SCALARS = {"train/loss": 2.5, "train/lr": 1e-3}


class Board:
    """The parts of the three libraries that are used; it notes what they are told."""

    def __init__(self, *words: Any, **options: Any) -> None:
        self.words, self.options, self.logged, self.closed = words, options, {}, 0
        Board.opened.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.logged.setdefault(step, {})[name] = value

    def log(self, scalars: dict[str, float], step: int) -> None:
        self.logged[step] = dict(scalars)

    def close(self) -> None:
        self.closed += 1

    finish = close
    opened: "list[Board]"


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> "list[Board]":
    """Stand-ins for the three libraries; what they opened."""
    for name in ("wandb", "trackio", "torch.utils.tensorboard"):
        module: Any = ModuleType(name)
        module.SummaryWriter = module.init = Board
        module.Settings = SimpleNamespace
        module.finish = lambda: Board.opened[-1].close()
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    Board.opened = []
    return Board.opened


def logging_to(run: Run, *names: str) -> Recipe:
    train = run.recipe.train.model_copy(update={"log_to": names})
    return run.recipe.model_copy(update={"train": train})


@pytest.mark.parametrize("name", log_writers.OPENERS)
def test_the_numbers_of_a_record_are_logged(name: str, tmp_path: Path, boards: "list[Board]") -> None:
    run = make_run(tmp_path)
    writers = LogWriters(run, logging_to(run, name), None)
    writers.add("train", RECORD)
    writers.close()
    [board] = boards
    assert (board.logged, board.closed) == ({7: SCALARS}, 1)


def test_a_resumed_training_goes_on_in_the_same_curves(tmp_path: Path, boards: "list[Board]") -> None:
    run = make_run(tmp_path)
    recipe = logging_to(run, *log_writers.OPENERS)
    LogWriters(run, recipe, None)
    (run.path / "tensorboard").mkdir()
    LogWriters(Run.open(run.path), recipe, 100)
    first, second = boards[:3], boards[3:]
    assert [first[0].options, second[0].options] == [{"purge_step": None}, {"purge_step": 101}]
    assert first[0].words == (str(run.path / "tensorboard"),)
    for before, after in zip(first[1:], second[1:], strict=True):
        assert {k: v for k, v in after.options.items() if k != "settings"} == {
            k: v for k, v in before.options.items() if k != "settings"
        }
        assert after.options["resume"] == "allow"
        assert (after.options["project"], after.options["group"]) == ("toy", "base")
    assert (first[1].options["mode"], first[1].options["dir"]) == ("offline", str(run.path))
    assert first[1].options["id"] in first[2].options["name"]
    other = make_run(tmp_path, seed=2)
    LogWriters(other, recipe, None)
    assert boards[7].options["id"] != first[1].options["id"]


@pytest.mark.parametrize("name", log_writers.OPENERS)
def test_without_the_extra_the_error_names_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)
    monkeypatch.setitem(sys.modules, name, None)
    text = rf"train.log_to: {name} is not installed: pip install 'attnkit\[{name}\]'"
    with pytest.raises(UnavailableError, match=text):
        log_writers.check_installed(logging_to(run, name))
    log_writers.check_installed(run.recipe)
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "no_package").mkdir()
    assert not log_writers.installed("no_package")


def test_an_error_of_a_library_is_one_line(
    tmp_path: Path, boards: "list[Board]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise ValueError("no\nkey")

    monkeypatch.setattr(sys.modules["wandb"], "init", fail)
    run = make_run(tmp_path)
    with pytest.raises(UnavailableError, match=r"wandb cannot be used: ValueError: no key"):
        LogWriters(run, logging_to(run, "wandb"), None)


@pytest.mark.parametrize(("word", "names"), [("true", ("tensorboard",)), ("false", ())])
def test_the_key_of_earlier_versions_is_read(word: str, names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"task: translation\ndata: {{corpus: toy-translation}}\ntrain: {{tensorboard: {word}}}\n")
    assert load(path).variants["base"].train.log_to == names


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="the extra tensorboard is not installed")
def test_tensorboard_reads_the_curves_of_a_resumed_training(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = make_run(tmp_path)
    recipe = logging_to(run, "tensorboard")
    for resumed, steps in ((None, (10, 20, 30)), (20, (30, 40))):
        writers = LogWriters(run, recipe, resumed)
        for step in steps:
            writers.add("valid", {"step": step, "loss": step / (2 if resumed else 1)})
        writers.close()
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("valid/loss")]
    assert found == [(10, 10), (20, 20), (30, 15), (40, 20)]
