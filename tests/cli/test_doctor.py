"""Tests of `attnkit doctor`."""

import csv
import io
import tomllib
from pathlib import Path

import pytest
from helpers.cli import Cli

from attnkit.cli.commands.doctor import EXTRAS


def test_folders_come_from_options_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.delenv("ATTNKIT_DATA", raising=False)
    for name in ("variable", "option"):
        (tmp_path / name / "multi30k").mkdir(parents=True)

    def doctor(*words: str) -> dict[str, str]:
        rows = csv.DictReader(io.StringIO(cli("doctor", *words, "--format", "csv").out))
        return {row["what"]: row["found"] for row in rows}

    assert doctor()["data (--data-dir)"].startswith("no folder: set ATTNKIT_DATA")
    monkeypatch.setenv("ATTNKIT_DATA", "variable")
    assert doctor()["data (--data-dir)"] == "variable: no known corpus"
    found = doctor("--data-dir", "option", "--out", "mine")
    assert found["data (--data-dir)"] == "option: no known corpus"
    assert found["runs (--out)"].startswith("mine: writable, will be created, ")
    assert found["device"] == "auto: cpu"


def test_every_extra_of_the_package_is_checked() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"test"}
