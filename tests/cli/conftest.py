"""Fixtures of the tests of the command line."""

from pathlib import Path

import pytest
from helpers.cli import Cli, Result, run_cli
from helpers.shell import Command, attnkit_in
from helpers.trained import make_run

from attnkit.runs import Run


@pytest.fixture
def cli_process(tmp_path: Path) -> Command:
    """Run `attnkit WORDS` in a process of its own, in an empty folder."""
    return attnkit_in(tmp_path)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run `attnkit WORDS` in this process, in an empty folder, and check its exit code (None: any).

    This starts a second faster than `cli_process`.
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
    """A finished run of a tiny untrained model, one for each test file."""
    return make_run(tmp_path_factory.mktemp("run"))
