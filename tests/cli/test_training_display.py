"""Tests of what `attnkit train` shows, with a fake training: lines, tables, JSON, the board, dry runs."""

import io
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.cli import Cli, Result
from helpers.score_rows import compare_rows, fixed_score, score_row

import attnkit.experiment
from attnkit import errors
from attnkit.cli import console
from attnkit.scoring import ScoreRow
from attnkit.train import events

RECIPE = """\
task: translation
data: {train: [a.en, a.de], valid: [b.en, b.de], test: [c.en, c.de]}
tokenizer: {size: 500}
model: {width: 32, heads: 2, layers: 1, ff: 64}
train: {steps: 100, batch_tokens: 4096}
variants:
  vanilla: {}
  linear: {model.attention: linear}
"""

Training = Callable[..., None]


class Terminal(io.StringIO):
    """A text stream that claims to be a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def row(variant: str) -> ScoreRow:
    scores = {"bleu": fixed_score("bleu", 90.0, "nrefs:1")}
    return score_row(variant, scores, recipe="toy", sentences=100, parameters=37504, run=f"runs/toy/{variant}/seed-1")


def finish(settings: Any, emit: events.Emit, **_: Any) -> None:
    """Emit two log intervals, a validation and a checkpoint for each variant, then scores."""
    emit(events.PreparedEvent(("1,000 rows, 3 dropped \x1b[2J",)))
    for variant in settings.variants:
        where: Any = {"variant": variant, "seed": 1}
        emit(events.StartedEvent(settings.file.name, 100, 37504, "cpu", "fp32", **where))
        for step in (50, 100):
            emit(events.ProgressEvent(step, 100, 3.0, 1e-3, 900.0, 0.5, 100.0 - step, **where))
        emit(events.ValidatedEvent(100, 1.0, 2.7, "bleu", 90.0, 90.0, **where))
        emit(events.SavedEvent(100, Path("x"), **where))
        emit(events.FinishedEvent(100, 5.0, "steps", **where))
    emit(events.ScoredEvent(compare_rows(*map(row, settings.variants))))


def failing(error: BaseException) -> Training:
    """Return a training that raises this error after its start."""

    def run(settings: Any, emit: events.Emit, **_: Any) -> None:
        name = settings.file.name
        emit(events.StartedEvent(name, 100, 37504, "cpu", "fp32", variant="vanilla", seed=1))
        raise error

    return run


@pytest.fixture
def train(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `attnkit train toy.yaml WORDS` with a fake training."""
    Path("toy.yaml").write_text(RECIPE)
    for name in ("a.en", "a.de", "b.en", "b.de", "c.en", "c.de"):  # a dry run checks that they exist
        Path(name).write_text("a line\n")
    for name in ("NO_COLOR", "LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def run(*words: str, training: Training = finish, terminal: Terminal | None = None, code: int = 0) -> Result:
        module = types.ModuleType("attnkit.experiment.training")
        monkeypatch.setattr(module, "train", training, raising=False)
        monkeypatch.setitem(sys.modules, "attnkit.experiment.training", module)
        monkeypatch.setattr(attnkit.experiment, "training", module, raising=False)
        if terminal is not None:
            monkeypatch.setattr(sys, "stderr", terminal)
        return cli("train", "toy.yaml", *words, code=code)

    return run


def test_output_off_a_terminal_is_one_plain_line_for_each_interval(train: Cli) -> None:
    shown = train("--variant", "linear")
    assert shown.err.splitlines() == [
        "toy: 1 variant, 1 run, runs go to runs/toy",
        "1,000 rows, 3 dropped \\x1b[2J",
        "linear seed 1: 37,504 parameters, cpu, fp32, 100 steps",
        "linear seed 1: step 50/100: training loss 3.000, learning rate 1.0e-03, 900 tokens/s, "
        "gradient norm 0.50, 50s left",
        "linear seed 1: step 100/100: training loss 3.000, learning rate 1.0e-03, 900 tokens/s, "
        "gradient norm 0.50, 0s left",
        "linear seed 1: step 100: validation loss 1.000, perplexity 2.70, validation BLEU 90.0",
        "linear seed 1: done at step 100 after 5s (steps)",
        "",
        "score again:    attnkit eval runs/toy/linear/seed-1",
        "use one model:  attnkit generate runs/toy/linear/seed-1 < input.txt",
    ]
    assert not set("\r\x1b") & set(shown.err + shown.out)


def test_only_the_table_is_on_standard_output(train: Cli) -> None:
    table = train().out.splitlines()
    assert table[0] == "toy: test"
    assert [line.split()[0] for line in table[3:5]] == ["vanilla", "linear"]


def test_json_is_one_event_a_line(train: Cli) -> None:
    shown = train("--json")
    assert shown.err == ""
    emitted = [json.loads(line) for line in shown.out.splitlines()]
    assert [event["event"] for event in emitted] == [
        "prepared",
        *["started", "progress", "progress", "validated", "saved", "finished"] * 2,
        "scored",
    ]
    assert {"variant", "seed"} <= set(emitted[1])
    assert emitted[-1]["rows"][0]["metrics"]["bleu"]["score"] == 90.0


def test_board_stays_on_a_terminal(train: Cli) -> None:
    terminal = Terminal()
    train("--no-color", terminal=terminal)
    shown = terminal.getvalue()
    last = shown.split("\x1b[2K")[-1]
    assert "toy: 2 of 2 done" in shown
    assert "linear          validation BLEU 90.0  done at step" in last
    assert "score again:    attnkit eval runs/toy" in last
    assert "see examples:   attnkit compare runs/toy" in last
    assert "1,000 rows, 3 dropped \\x1b[2J" in shown
    assert "\x1b[1m" not in shown


def test_dumb_terminal_gets_plain_lines(train: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(console, "is_terminal", lambda stream: False)
    train(terminal=terminal)
    assert "\x1b" not in terminal.getvalue()
    assert "vanilla seed 1: step 50/100" in terminal.getvalue()


def test_interruption_stays_visible_on_the_board(train: Cli) -> None:
    terminal = Terminal()
    train(terminal=terminal, training=failing(KeyboardInterrupt()), code=130)
    shown = terminal.getvalue()
    assert "stopped" in shown
    assert shown.endswith("attnkit: interrupted\n")
    assert "\x1b[?25h" in shown, "the cursor stayed hidden"


def test_stop_prints_the_command_that_resumes(train: Cli) -> None:
    stop = errors.StoppedError("stopped by SIGTERM after step 40; run this to go on")
    done = train("--fresh", "train.steps=90", training=failing(stop), code=75)
    assert done.err.splitlines()[-1] == (
        "attnkit: stopped by SIGTERM after step 40; run this to go on (runs that were not started "
        "keep their old weights): attnkit train toy.yaml train.steps=90"
    )


def test_out_of_memory_suggests_a_smaller_batch(train: Cli) -> None:
    assert train(training=failing(MemoryError()), code=71).error == (
        "attnkit: error: out of memory: try train.batch_tokens=2048 train.accumulate=2 "
        "(the same updates in smaller batches)"
    )


def test_options_may_be_repeated(train: Cli) -> None:
    calls: list[Any] = []

    def record(settings: Any, emit: events.Emit, **_: Any) -> None:
        calls.append(settings)

    train("--variant", "linear", "vanilla", "--seed", "3", "4", training=record)
    train("--seed", "3", "--variant", "linear", "--seed", "4", "--variant", "vanilla", training=record)
    assert calls[0] == calls[1]
    assert calls[0].variants == ["vanilla", "linear"]
    assert calls[0].seeds == [3, 4]
    assert calls[0].out == Path("runs")


def test_dry_run_shows_the_plan_and_trains_nothing(train: Cli) -> None:
    lines = train("--dry-run", "train.seeds=[1,2]").out.splitlines()
    assert lines[1].split() == ["variant", "seed", "state", "run", "steps", "parameters"]
    assert [line.split()[0:2] for line in lines[3:7]] == [[name, n] for name in ("vanilla", "linear") for n in "12"]
    assert lines[3].split()[2:5] == ["new", "runs/toy/vanilla/seed-1", "100"]
    assert not Path("runs").exists()


def test_dry_run_has_the_errors_of_training(train: Cli) -> None:
    Path("runs/toy/linear/seed-1/outputs").mkdir(parents=True)
    shown = train("--dry-run", code=73)
    states = [line.split()[2:4] for line in shown.out.splitlines()[3:5]]
    assert states == [["new", "runs/toy/vanilla/seed-1"], ["refused:", "in"]]
    assert "already holds outputs of another run" in shown.err
    first, second = (json.loads(line) for line in train("--dry-run", "--json", code=73).out.splitlines())
    assert (first["state"], first["reason"], second["state"]) == ("new", None, "refused")
    assert "already holds outputs" in second["reason"]


def test_dry_run_as_json_is_one_object_for_each_run(train: Cli) -> None:
    plans = [json.loads(line) for line in train("--dry-run", "--json", "--seed", "5").out.splitlines()]
    assert [(p["event"], p["variant"], p["seed"], p["steps"]) for p in plans] == [
        ("planned", "vanilla", 5, 100),
        ("planned", "linear", 5, 100),
    ]
    assert all(p["parameters"] > 0 for p in plans)
