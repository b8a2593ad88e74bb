"""Fixtures of tests of the command line."""

from pathlib import Path

import pytest
from helpers.cli import Cli, Result, run_cli
from helpers.shell import Command, attnkit_in
from helpers.trained import make_run

from attnkit.runs import Run


@pytest.fixture
def cli_process(tmp_path: Path) -> Command:
    """Return a function that runs `attnkit WORDS` in a new process, in an empty folder."""
    return attnkit_in(tmp_path)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return a function that runs `attnkit WORDS` in this process, in an empty folder.

    It asserts the exit code (0; None: any), and is a second faster than `cli_process`.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: str, stdin: bytes | str = "", code: int | None = 0) -> Result:
        done = run_cli(capsys, *words, stdin=stdin)
        assert code in (None, done.code), done.err
        return done

    return call


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a finished run of a tiny untrained model, shared by the tests of a file."""
    return make_run(tmp_path_factory.mktemp("run"))
