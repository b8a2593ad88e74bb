"""Tests of `attnkit train --tune`: plans, trials, parallel jobs, stops, tables and plots."""

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
    """The current folder, with a recipe and its corpus."""
    write_backwards(tmp_path, 40)
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    return tmp_path


def on_one_line(text: str) -> str:
    """Return a text without the line breaks of a narrow screen."""
    return " ".join(text.split())


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("tiny")
def test_tuned_comparison_from_plan_to_plot(cli: Cli) -> None:
    plans = [json.loads(line) for line in cli(*TUNE, "--dry-run", "--json").out.splitlines()]
    assert [(plan["variant"], plan["state"], plan["steps"]) for plan in plans] == [
        *((f"{v},lr={lr}", "new", 6) for v in ("one", "two") for lr in ("0.001", "0.003", "0.01")),
        ("one", "new", 12),
        ("two", "new", 12),
    ]
    assert not Path("runs").exists()

    done = cli(*TUNE)
    assert "tiny: 2 variants, 2 runs, 6 trials, runs go to runs/tiny" in done.err
    assert "one: chose train.lr=0.01 (0.001: validation loss " in done.err
    assert "two: train.lr=0.01 is the largest value tried; a larger value may" in done.err
    note = "lr chosen per row from 3 values on validation (trials of 6 updates): one 1e-2, two 1e-2"
    assert note in on_one_line(done.out)
    assert len(list(Path().glob("runs/tiny/*/tune/train.lr=*/seed-1/manifest.json"))) == 6
    rows = json.loads(cli("eval", "runs/tiny", "--format", "json").out)["rows"]
    assert [(row["variant"], row["tuned"]["value"]) for row in rows] == [("one", "0.01"), ("two", "0.01")]

    again = cli("train", "tiny.yaml")
    assert again.err.count("skipped: already trained") == 2
    assert "one: train.lr=0.01, as tuned before" in again.err
    assert note in on_one_line(again.out)
    assert "train.lr: 0.01 -> 0.001" in cli("train", "tiny.yaml", "train.lr=0.001", code=78).error
    assert "was tuned by other trials" in cli(*TUNE[:3], "train.lr=1e-3,1e-1", code=78).error

    plot = ("plot", "runs", "--x")
    drawn = cli(*plot, "train.lr")
    assert drawn.err == ""
    assert drawn.out.startswith("validation loss\n")
    assert "a one" in drawn.out
    assert "0.001" in drawn.out.splitlines()[-4]
    cli(*plot, "train.lr", "--save", "lr.svg")
    cli(*plot, "train.schedule", code=2)
    cli(*plot, "train.nothing", code=2)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_parallel_trials_score_as_sequential_trials(cli: Cli) -> None:
    words = ("train", "tiny.yaml", "--tune", "train.lr=1e-3,1e-2", "--tune-steps", "6")
    cli(*words)
    cli(*words, "--jobs", "2", "--out", "parallel")
    for variant in ("one", "two"):
        sequential, parallel = (
            Run.open(f"{out}/tiny/{variant}/seed-1").manifest.tuned.trials for out in ("runs", "parallel")
        )
        assert [trial.value for trial in sequential] == ["0.001", "0.01"]
        for first, second in zip(sequential, parallel, strict=True):
            assert first.score == pytest.approx(second.score, rel=1e-3)


@pytest.mark.slow
def test_stopped_trial_can_be_resumed(tiny: Path, cli: Cli) -> None:
    words = ["train", "tiny.yaml", "--tune", "train.lr=1e-3,1e-2", "--variant", "one"]
    words += ["train.steps=3000", "train.valid_every=0", "train.log_every=5"]
    process = ForkedCommand(tiny, *words, "--json").until("progress")
    os.kill(process.pid, signal.SIGTERM)
    done = process.wait()
    assert done.returncode == 75, done.stderr
    plans = [json.loads(line) for line in cli(*words, "--dry-run", "--json").out.splitlines()]
    assert [plan["state"] for plan in plans] == ["begun", "new", "new"]


@pytest.mark.usefixtures("tiny")
def test_table_notes_rows_that_were_not_tuned(cli: Cli) -> None:
    train = ("train", "tiny.yaml", "train.steps=2", "-q")
    assert "lr not tuned: 1e-3 in all rows" in on_one_line(cli(*train).out)
    assert "lr not tuned" not in cli("eval", "runs/tiny/one").out
    error = cli(*train, "--tune", "train.lr=1e-2,1e-1", code=78).error
    assert "was trained with another value of train.lr" in error
    assert not [*Path("runs/tiny").glob("*/tune")]  # before any trial
    table = cli(*train, "variants.one.train.lr=2e-3", "--out", "other").out
    assert "lr not tuned, but set by the recipe: 2e-3 (one); 1e-3 (two)" in on_one_line(table)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_plot_of_a_sweep_has_a_line_for_each_variant(cli: Cli) -> None:
    cli("train", "tiny.yaml", "train.lr=1e-3,2e-3", "train.steps=2", "-q")
    run = Run.open("runs/tiny/one,lr=0.002/seed-1")
    loss = f"{run.log.records()[-1]['valid_loss']:.3g}"
    assert f"a one {loss}\nb two " in cli("plot", "runs", "--x", "train.lr").out
