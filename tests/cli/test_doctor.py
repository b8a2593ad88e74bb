"""`attnkit doctor`."""

import csv
import io
from pathlib import Path

import pytest
from helpers.shell import Command

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
    assert found["runs (--out)"].startswith("mine: writable, will be made, ")
    assert found["device"] == "auto: cpu"


def test_every_extra_of_the_package_is_looked_for() -> None:
    import tomllib

    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"test"}


@pytest.mark.slow
def test_the_ranks_say_where_they_are_and_how_fast_they_talk(command: Command) -> None:
    done = command("doctor", "--nproc", "2", "--format", "csv", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    rows = [row for row in csv.DictReader(io.StringIO(done.stdout)) if row["part"] == "ranks"]
    assert [row["what"] for row in rows] == ["rank 0", "rank 1", "all-reduce, gloo"]
    processes = {row["found"].split(", ")[1] for row in rows[:2]}
    assert len(processes) == 2
    assert all(", cpu, threads: " in row["found"] for row in rows[:2])
    assert float(rows[2]["found"].split(" ms for 16 MB, ")[0]) > 0
