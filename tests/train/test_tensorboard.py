"""What goes to TensorBoard, with and without the extra."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from attnkit.errors import UnavailableError
from attnkit.train.tensorboard import Tensorboard

RECORD = {"step": 7, "loss": 2.5, "lr": 1e-3, "monitor": "bleu"}


class Writer:
    """The part of torch's SummaryWriter that is used."""

    def __init__(self, folder: str) -> None:
        self.folder, self.scalars, self.closed = folder, [], False
        Writer.last = self

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def close(self) -> None:
        self.closed = True

    last: Any = None


def test_numbers_of_a_record_go_to_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    board = Tensorboard(tmp_path)
    board.add("train", RECORD)
    board.close()
    assert Writer.last.folder == str(tmp_path / "tensorboard")
    assert Writer.last.scalars == [("train/loss", 2.5, 7), ("train/lr", 1e-3, 7)]
    assert Writer.last.closed


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UnavailableError, match=r"pip install 'attnkit\[tensorboard\]'"):
        Tensorboard(tmp_path)


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="the extra tensorboard is not installed"
)
def test_the_real_writer_writes_events(tmp_path: Path) -> None:
    board = Tensorboard(tmp_path)
    board.add("valid", RECORD)
    board.close()
    events = [path.read_bytes() for path in (tmp_path / "tensorboard").iterdir()]
    assert any(b"valid/loss" in text for text in events)
