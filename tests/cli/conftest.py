"""Fixtures of the command line's tests."""

from functools import partial
from pathlib import Path

import pytest
from helpers.cli import Cli, run_cli
from helpers.shell import Command, attnkit_in
from helpers.trained import make_run

from attnkit.runs import Run


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """The real command line in a process of its own, in an empty folder."""
    return attnkit_in(tmp_path)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line in this process, in an empty folder; it starts a second faster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return partial(run_cli, capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of a tiny untrained model, one for each file of tests."""
    return make_run(tmp_path_factory.mktemp("run"))
