"""`attnkit runs` and `attnkit runs clean` as people type them."""

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

COUNTED = """
import cProfile, pstats, sys
from attnkit.cli import main

profile = cProfile.Profile()
profile.runcall(main, ["runs"])
print(pstats.Stats(profile).total_calls, file=sys.stderr)
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A finished baseline with two seeds, and an unfinished variant."""
    for seed in (1, 2):
        make_logged(tmp_path / "runs", seed=seed, scores={"bleu": 20.0 + seed})
    make_logged(tmp_path / "runs", "quick", finished=False, train={"steps": 50, "lr": 0.125})
    return tmp_path / "runs"


def test_every_run_is_a_line(runs: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    done = cli("runs")
    assert (done.code, done.err) == (0, "")
    lines = {line.split()[0]: line for line in done.out.splitlines() if "seed-" in line}
    assert [*lines] == ["base/seed-1", "base/seed-2", "quick/seed-1"]
    assert lines["base/seed-2"].split()[1:4] == ["done", "30/100", "22.00"]
    assert lines["quick/seed-1"].split()[1:3] == ["unfinished", "30/50"]
    assert lines["quick/seed-1"].rstrip().endswith("train.steps: 50, train.lr: 0.125")
    assert "3 runs, " in done.out
    assert cli("runs", "list", "runs/toy").out.splitlines()[1:3] == done.out.splitlines()[1:3]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("width", [30, 60, 80, 160])
def test_the_table_fits_and_says_what_it_leaves_out(width: int, runs: Path, command: Command) -> None:
    shown = command("runs", COLUMNS=str(width)).stdout
    assert max(map(len, shown.splitlines())) <= width
    assert ("columns omitted at width 60" in " ".join(shown.split())) == (width == 60)
    assert re.search(r"^quick/seed-1\s+(state )?\s*unfinished\b", shown, re.MULTILINE)
    assert ("train.lr:" in shown) == (width != 60)


def test_programs_get_named_values(runs: Path, cli: Cli) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("runs", "--format", "csv").out)))
    assert [row["run"] for row in rows] == [
        f"runs/toy/{name}" for name in ("base/seed-1", "base/seed-2", "quick/seed-1")
    ]
    assert rows[0]["removable_bytes"] == "1000"
    assert rows[2]["differs"] == "train.steps: 50; train.lr: 0.125"
    found = json.loads(cli("runs", "--format", "json").out)["rows"]
    assert [row["state"] for row in found] == ["done", "done", "unfinished"]
    assert [row["score"] for row in found] == [21.0, 22.0, None]


@pytest.mark.slow
def test_a_hundred_runs_call_less_than_nine_times_what_one_does(tmp_path: Path) -> None:
    """Counted in calls of functions: the ratio of times depends on what else the machine does."""
    first = make_logged(tmp_path / "runs", seed=0, losses=[1.0] * 100, scores={"bleu": 20.0})

    def calls(runs: int) -> int:
        done = subprocess.run(
            [sys.executable, "-c", COUNTED],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert done.stdout.count("seed-") == runs
        return int(done.stderr)

    one = calls(1)
    for seed in range(1, 100):
        Run(shutil.copytree(first.path, first.path.with_name(f"seed-{seed}"))).update(seed=seed)
    assert calls(100) < 9 * one


def test_cleaning_asks_for_yes_where_nobody_can_be_asked(runs: Path, cli: Cli) -> None:
    done = cli("runs", "clean")
    assert done.code == 2
    assert "the checkpoints of 2 runs, 2 kB; add --yes" in done.err
    assert len(list(runs.rglob("step-*"))) == 3
    done = cli("runs", "clean", "--yes")
    assert (done.code, done.out) == (0, "")
    assert done.err.endswith("removed 2 kB\n")
    assert [path.parts[-4] for path in runs.rglob("step-*")] == ["quick"]
    assert "nothing to remove" in cli("runs", "clean", "--yes").err


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "left"), [(b"y\n", 1), (b"\n", 3)])
def test_cleaning_asks_at_a_terminal(answer: bytes, left: int, runs: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    done = subprocess.run(
        [sys.executable, "-m", "attnkit", "runs", "clean"],
        stdin=theirs,
        capture_output=True,
        text=True,
        env=environment(),
        cwd=runs.parent,
        timeout=60,
        check=True,
    )
    os.close(ours)
    os.close(theirs)
    assert "runs/toy/base/seed-2: 1 kB" in done.stderr
    assert "Remove the checkpoints of 2 runs, 2 kB?" in done.stderr
    assert len(list(runs.rglob("step-*"))) == left


def test_a_cleaned_run_is_skipped_by_the_next_training(tmp_path: Path, cli: Cli) -> None:
    recipe = small_recipe(write_corpus(tmp_path), steps=2)
    (tmp_path / "tiny.yaml").write_text(dump(recipe))
    assert cli("train", "tiny.yaml").code == 0
    before = (tmp_path / "runs/tiny/base/seed-1/model.safetensors").read_bytes()
    assert "removed" in cli("runs", "clean", "--yes").err
    done = cli("train", "tiny.yaml")
    assert done.code == 0, done.err
    assert "already trained" in done.err
    assert (tmp_path / "runs/tiny/base/seed-1/model.safetensors").read_bytes() == before
    assert "done" in cli("runs").out
