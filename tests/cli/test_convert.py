"""Tests of `attnkit convert`: the table, the runs of each stage, repetition and skipped stages."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.cli import Cli
from helpers.conversion_runs import make_run

QUICK = ("--transfer", "2", "--tune", "1", "--device", "cpu")
STAGES = ["base", *(f"base-linear-{stage}" for stage in ("swapped", "transferred", "tuned"))]


@pytest.fixture
def convert(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `attnkit convert RUN WORDS` in a folder with a run in runs/small/base/seed-1."""
    make_run(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words, run="runs/small/base/seed-1": cli("convert", run, *words)


def test_table_compares_each_stage_with_the_original_run(convert: Any, cli: Cli) -> None:
    done = convert("--attention", "linear", *QUICK)
    rows = [line.split()[0] for line in done.out.splitlines() if line.startswith("base")]
    assert rows == STAGES
    assert "difference: to base;" in done.out
    assert " kept, 0 new, 0 removed" in done.err
    assert "mean squared error of the layers" in done.err
    last = "runs/small/base-linear-tuned/seed-1"
    assert f"attnkit generate {last} < input.txt" in done.err
    for words in (("generate", last), ("visualize-attn", last, "red dog"), ("eval", last)):
        assert cli(*words, stdin="red dog\n").out
    listed = cli("runs", "list", "runs", "--format", "json")
    assert {row["variant"] for row in json.loads(listed.out)["rows"]} == {*STAGES}


@pytest.mark.slow
def test_command_can_be_repeated_after_the_runs_have_moved(convert: Any) -> None:
    """The recipe of the fine-tuned run has a relative path to the run before it."""
    convert("--attention", "linear", *QUICK)
    recipe = Path("runs/small/base-linear-tuned/seed-1/recipe.yaml")
    assert "init: ../../base-linear-transferred/seed-1\n" in recipe.read_text()
    Path("runs").rename("moved")
    again = convert("--attention", "linear", *QUICK, "--out", "moved", run="moved/small/base/seed-1")
    assert again.err.count("skipped: already") == 3
    assert "recipe changed" not in again.err


def test_stages_can_be_skipped(convert: Any) -> None:
    assert convert("--attention", "{encoder: nystrom}", "--transfer", "0", "--tune", "0", "-q").err == ""
    assert {path.name for path in Path("runs/small").iterdir()} == {"base", "base-nystrom-swapped"}
