"""`attnkit doctor`."""

import csv
import io
from pathlib import Path

import pytest

from attnkit.cli import main
from attnkit.cli.commands.doctor import EXTRAS


def test_data_and_runs_are_those_of_the_command_line_else_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ATTNKIT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("variable", "option"):
        (tmp_path / name / "multi30k").mkdir(parents=True)

    def doctor(*words: str) -> dict[str, str]:
        assert main(["doctor", *words, "--format", "csv"]) == 0
        rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
        return {row["what"]: row["found"] for row in rows}

    assert doctor()["data (--data-dir)"].startswith("no folder: set ATTNKIT_DATA")
    monkeypatch.setenv("ATTNKIT_DATA", "variable")
    assert doctor()["data (--data-dir)"] == "variable: no known corpus"
    found = doctor("--data-dir", "option", "--out", "mine")
    assert found["data (--data-dir)"] == "option: no known corpus"
    assert found["runs (--out)"].startswith("mine: writable, will be created, ")
    assert found["device"] == "auto: cpu"


def test_every_extra_of_the_package_is_looked_for() -> None:
    import tomllib

    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"test"}
