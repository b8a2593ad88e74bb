"""`attnkit train --tune` as people type it: plans, events, jobs, stops, tables and pictures."""

import json
import os
import signal
from pathlib import Path

import pytest
from helpers.cli import Cli
from helpers.forked_command import ForkedCommand
from helpers.small import write_backwards

from attnkit.runs import Run

RECIPE = """\
task: translation
data: {train: [a.src, a.tgt], valid: [b.src, b.tgt], test: [b.src, b.tgt]}
tokenizer: {type: word, size: 60}
model: {width: 16, heads: 2, layers: 1, ff: 32}
train: {steps: 12, batch_tokens: 128, valid_every: 6, log_every: 6, warmup: 4, precision: fp32}
search: {method: greedy, max_length: 20}
eval: {bootstrap: 0}
variants: {one: {}, two: {model.attention: linear}}
"""
TUNE = ("train", "tiny.yaml", "--tune", "train.lr=1e-3,3e-3,1e-2", "--tune-steps", "6")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A folder with a recipe and its corpus."""
    write_backwards(tmp_path, 40)
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    return tmp_path


def on_one_line(text: str) -> str:
    """Notes as they are on a wide screen."""
    return " ".join(text.split())


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("tiny")
def test_a_tuned_comparison_from_plan_to_picture(cli: Cli, tmp_path: Path) -> None:
    plan = cli(*TUNE, "--dry-run", "--json")
    rows = [json.loads(line) for line in plan.out.splitlines()]
    names = [(row["variant"], row["state"], row["steps"]) for row in rows]
    assert names == [
        *((f"{v},lr={lr}", "new", 6) for v in ("one", "two") for lr in ("0.001", "0.003", "0.01")),
        ("one", "new", 12),
        ("two", "new", 12),
    ]
    assert not (tmp_path / "runs").exists()

    done = cli(*TUNE)
    assert done.code == 0, done.err
    assert "tiny: 2 variants, 2 runs, 6 trials, runs go to runs/tiny" in done.err
    assert "one: chose train.lr=0.01 (0.001: validation loss " in done.err
    assert "two: train.lr=0.01 is the largest value tried; a larger value may" in done.err
    note = "lr chosen per row from 3 values on validation (trials of 6 updates): one 1e-2, two 1e-2"
    assert note in on_one_line(done.out)
    trials = list(tmp_path.glob("runs/tiny/*/tune/train.lr=*/seed-1/manifest.json"))
    assert len(trials) == 6
    scored = cli("eval", "runs/tiny", "--format", "json")
    found = json.loads(scored.out)["rows"]
    assert [(row["variant"], row["tuned"]["value"]) for row in found] == [("one", "0.01"), ("two", "0.01")]

    again = cli("train", "tiny.yaml")
    assert again.code == 0, again.err
    assert again.err.count("skipped: already trained") == 2
    assert "one: train.lr=0.01, as tuned before" in again.err
    assert note in on_one_line(again.out)
    changed = cli("train", "tiny.yaml", "train.lr=0.001")
    assert changed.code == 78
    assert "train.lr: 0.01 -> 0.001" in changed.error
    other = cli(*TUNE[:3], "train.lr=1e-3,1e-1")
    assert other.code == 78
    assert "was tuned by other trials" in other.error

    drawn = cli("plot", "runs", "--x", "train.lr")
    assert (drawn.code, drawn.err) == (0, "")
    assert drawn.out.startswith("validation loss\n")
    assert "a one" in drawn.out
    assert "0.001" in drawn.out.splitlines()[-4]
    assert cli("plot", "runs", "--x", "train.lr", "--save", "lr.svg").code == 0
    assert cli("plot", "runs", "--x", "train.schedule").code == 2
    assert cli("plot", "runs", "--x", "train.nothing").code == 2


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_trials_side_by_side_score_as_one_after_the_other(cli: Cli) -> None:
    words = ("train", "tiny.yaml", "--tune", "train.lr=1e-3,1e-2", "--tune-steps", "6")
    one, side = cli(*words), cli(*words, "--jobs", "2", "--out", "side")
    assert (one.code, side.code) == (0, 0), side.err
    for row in ("one", "two"):
        first, second = (Run.open(f"{out}/tiny/{row}/seed-1").manifest.tuned.trials for out in ("runs", "side"))
        assert [one.value for one in first] == ["0.001", "0.01"]
        for left, right in zip(first, second, strict=True):
            assert left.score == pytest.approx(right.score, rel=1e-3)


@pytest.mark.slow
def test_a_stopped_trial_is_gone_on_with(tiny: Path, cli: Cli) -> None:
    words = ["train", "tiny.yaml", "--tune", "train.lr=1e-3,1e-2", "--variant", "one"]
    words += ["train.steps=3000", "train.valid_every=0", "train.log_every=5"]
    process = ForkedCommand(tiny, *words, "--json").until("progress")
    os.kill(process.pid, signal.SIGTERM)
    done = process.ended()
    assert done.returncode == 75, done.stderr
    plan = cli(*words, "--dry-run", "--json")
    states = [json.loads(line)["state"] for line in plan.out.splitlines()]
    assert states == ["begun", "new", "new"]


@pytest.mark.usefixtures("tiny")
def test_rows_that_were_not_tuned_say_so(cli: Cli) -> None:
    done = cli("train", "tiny.yaml", "train.steps=2", "-q")
    assert "lr not tuned: 1e-3 in all rows" in on_one_line(done.out)
    assert "lr not tuned" not in cli("eval", "runs/tiny/one").out
    late = cli("train", "tiny.yaml", "train.steps=2", "--tune", "train.lr=1e-2,1e-1")
    assert (late.code, "was trained with another value of train.lr" in late.error) == (78, True)
    assert not [*Path("runs/tiny").glob("*/tune")]  # before any trial
    words = ("variants.one.train.lr=2e-3", "--out", "other")
    other = cli("train", "tiny.yaml", "train.steps=2", "-q", *words)
    assert "lr not tuned, but set by the recipe: 2e-3 (one); 1e-3 (two)" in on_one_line(other.out)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_a_picture_of_a_sweep_has_a_line_for_each_variant(cli: Cli, tmp_path: Path) -> None:
    assert cli("train", "tiny.yaml", "train.lr=1e-3,2e-3", "train.steps=2", "-q").code == 0
    drawn = cli("plot", "runs", "--x", "train.lr")
    assert drawn.code == 0, drawn.err
    run = Run.open(tmp_path / "runs/tiny/one,lr=0.002/seed-1")
    loss = f"{run.log.records()[-1]['valid_loss']:.3g}"
    assert f"a one {loss}\nb two " in drawn.out
