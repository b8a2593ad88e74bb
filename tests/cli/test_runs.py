"""Tests of `attnkit runs` and `attnkit runs clean`."""

import csv
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cli import Cli
from helpers.logged import make_logged
from helpers.shell import Command, environment
from helpers.small import small_recipe, write_corpus

from attnkit.recipe import dump
from attnkit.runs import Run

COUNT_CALLS = """
import cProfile, pstats, sys
from attnkit.cli import main

profile = cProfile.Profile()
profile.runcall(main, ["runs"])
print(pstats.Stats(profile).total_calls, file=sys.stderr)
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Finished runs of a baseline with two seeds, and an unfinished run of a variant."""
    for seed in (1, 2):
        make_logged(tmp_path / "runs", seed=seed, scores={"bleu": 20.0 + seed})
    make_logged(tmp_path / "runs", "quick", finished=False, train={"steps": 50, "lr": 0.125})
    return tmp_path / "runs"


@pytest.mark.usefixtures("runs")
def test_every_run_is_a_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    done = cli("runs")
    assert done.err == ""
    lines = {line.split()[0]: line for line in done.out.splitlines() if "seed-" in line}
    assert [*lines] == ["base/seed-1", "base/seed-2", "quick/seed-1"]
    assert lines["base/seed-2"].split()[1:4] == ["done", "30/100", "22.00"]
    assert lines["quick/seed-1"].split()[1:3] == ["unfinished", "30/50"]
    assert lines["quick/seed-1"].rstrip().endswith("train.steps: 50, train.lr: 0.125")
    assert "3 runs, " in done.out
    assert cli("runs", "list", "runs/toy").out.splitlines()[1:3] == done.out.splitlines()[1:3]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("width", [30, 60, 80, 160])
@pytest.mark.usefixtures("runs")
def test_table_fits_the_screen_and_names_omitted_columns(width: int, cli_process: Command) -> None:
    shown = cli_process("runs", COLUMNS=str(width)).stdout
    assert max(map(len, shown.splitlines())) <= width
    assert ("columns omitted at width 60" in " ".join(shown.split())) == (width == 60)
    assert re.search(r"^quick/seed-1\s+(state )?\s*unfinished\b", shown, re.MULTILINE)
    assert ("train.lr:" in shown) == (width != 60)


@pytest.mark.usefixtures("runs")
def test_csv_and_json_have_named_values(cli: Cli) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("runs", "--format", "csv").out)))
    assert [row["run"] for row in rows] == [
        f"runs/toy/{name}" for name in ("base/seed-1", "base/seed-2", "quick/seed-1")
    ]
    assert rows[0]["removable_bytes"] == "1000"
    assert rows[2]["differs"] == "train.steps: 50; train.lr: 0.125"
    rows = json.loads(cli("runs", "--format", "json").out)["rows"]
    assert [(row["state"], row["score"]) for row in rows] == [("done", 21.0), ("done", 22.0), ("unfinished", None)]


@pytest.mark.slow
def test_a_hundred_runs_take_less_than_nine_times_the_calls_of_one(tmp_path: Path) -> None:
    """Function calls are counted, since times depend on the load of the machine."""
    first = make_logged(tmp_path / "runs", seed=0, losses=[1.0] * 100, scores={"bleu": 20.0})

    def calls(runs: int) -> int:
        command = [sys.executable, "-c", COUNT_CALLS]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=True
        )
        assert done.stdout.count("seed-") == runs
        return int(done.stderr)

    calls_of_one = calls(1)
    for seed in range(1, 100):
        Run(shutil.copytree(first.path, first.path.with_name(f"seed-{seed}"))).update(seed=seed)
    assert calls(100) < 9 * calls_of_one


def test_clean_needs_yes_without_a_terminal(runs: Path, cli: Cli) -> None:
    assert "the checkpoints of 2 runs, 2 kB; add --yes" in cli("runs", "clean", code=2).err
    assert len(list(runs.rglob("step-*"))) == 3
    done = cli("runs", "clean", "--yes")
    assert done.out == ""
    assert done.err.endswith("removed 2 kB\n")
    assert [path.parts[-4] for path in runs.rglob("step-*")] == ["quick"]
    assert "nothing to remove" in cli("runs", "clean", "--yes").err


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "left"), [(b"y\n", 1), (b"\n", 3)])
def test_clean_asks_at_a_terminal(answer: bytes, left: int, runs: Path) -> None:
    terminal, stdin = pty.openpty()
    os.write(terminal, answer)
    done = subprocess.run(
        [sys.executable, "-m", "attnkit", "runs", "clean"],
        stdin=stdin,
        capture_output=True,
        text=True,
        env=environment(),
        cwd=runs.parent,
        timeout=60,
        check=True,
    )
    os.close(terminal)
    os.close(stdin)
    assert "runs/toy/base/seed-2: 1 kB" in done.stderr
    assert "Remove the checkpoints of 2 runs, 2 kB?" in done.stderr
    assert len(list(runs.rglob("step-*"))) == left


def test_cleaned_run_is_skipped_by_the_next_training(tmp_path: Path, cli: Cli) -> None:
    Path("tiny.yaml").write_text(dump(small_recipe(write_corpus(tmp_path), steps=2)))
    cli("train", "tiny.yaml")
    model = Path("runs/tiny/base/seed-1/model.safetensors")
    before = model.read_bytes()
    assert "removed" in cli("runs", "clean", "--yes").err
    assert "already trained" in cli("train", "tiny.yaml").err
    assert model.read_bytes() == before
    assert "done" in cli("runs").out
