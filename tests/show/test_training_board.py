"""Tests of the board of training and of its log lines."""

import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from attnkit.scoring import Comparison
from attnkit.show import quantities, training_board
from attnkit.show.training_board import Board, BoardRun
from attnkit.train import events

RUN = {"variant": "scaled-dot", "seed": 1}
NEXT = {"variant": "synthesizer-random", "seed": 1}


def board(*variants: str, seeds: tuple[int, ...] = (1,), recipe: str = "translation/toy", jobs: int = 1) -> Board:
    runs = tuple(BoardRun(variant, seed) for variant in variants for seed in seeds)
    return Board(recipe, runs, jobs)


def after(state: Board, *new: events.Event) -> Board:
    for event in new:
        state.update(event)
    return state


def halfway() -> Board:
    """Return a board on which the first of three trainings is done, and the second at step 600 of 1,000."""
    return after(
        board("scaled-dot", "synthesizer-random", "linear"),
        events.PreparedEvent(("29,000 rows",)),
        events.StartedEvent("translation/toy", 1000, 1234567, "cpu", "bf16", **RUN),
        events.ValidatedEvent(1000, 0.7, 2.0, "bleu", 88.24, 88.4, **RUN),
        events.FinishedEvent(1000, 90.2, "steps", **RUN),
        events.StartedEvent("translation/toy", 1000, 1034567, "cpu", "bf16", **NEXT),
        events.ProgressEvent(600, 1000, 1.0, 8.2e-4, 7712.3, 0.712, 20.0, **NEXT),
        events.ValidatedEvent(600, 0.9, 2.4, "bleu", 61.0, 61.0, **NEXT),
    )


def text(state: Board, width: int) -> str:
    out = io.StringIO()
    plain: dict[str, Any] = {"color_system": None, "markup": False, "highlight": False, "emoji": False}
    Console(file=out, width=width, height=24, **plain).print(state)
    lines = out.getvalue().splitlines()
    assert all(cell_len(line) <= width for line in lines)
    return "\n".join(line.rstrip() for line in lines)


RUNS = [
    "scaled-dot          validation BLEU 88.2  done at step 1,000 after 1m30s (steps)",
    "synthesizer-random  validation BLEU 61.0  training",
    "linear                                    waiting",
]


def test_runs_have_a_line_each_and_the_current_one_its_progress() -> None:
    title, current, *runs = text(halfway(), 200).splitlines()
    assert title == "translation/toy: 1 of 3 done, about 1m50s left"
    assert current.endswith(
        " synthesizer-random: step 600/1,000: training loss 1.000, learning rate 8.2e-04, "
        "7,712 tokens/s, gradient norm 0.71, 20s left"
    )
    assert runs == RUNS
    assert "20s left" in " ".join(text(halfway(), 80).split())


def test_title_says_that_the_machine_is_busy() -> None:
    state = Board("t", (BoardRun("scaled-dot", 1),), busy=lambda: "machine busy")
    after(state, events.ProgressEvent(3, 10, 1.5, 1e-3, 100.0, None, 6.0, **RUN))
    assert text(state, 200).startswith("t: 0 of 1 done, machine busy\n")


def test_runs_and_their_states_are_shown_at_all_widths() -> None:
    for width in range(40, 161):
        shown = text(halfway(), width)
        names, states = ("scaled-dot", "synthesizer-", "linear"), ("done", "training", "waiting")
        for line, name, state in zip(shown.splitlines()[-3:], names, states, strict=True):
            assert name in line
            assert f" {state}" in line
        assert "20s left" in " ".join(shown.split())
        assert "BLEU 88.2" in shown


def test_board_shows_preparation_and_scoring() -> None:
    state = board("a", seeds=(1, 2))
    title, current, *runs = text(state, 80).splitlines()
    assert title == "translation/toy: 0 of 2 done"
    assert current.endswith(" preparing data")
    assert [line.split() for line in runs] == [["a", "seed", seed, "waiting"] for seed in "12"]
    after(state, events.NoteEvent("preparing encode: 2,000", passing=True))
    assert " preparing encode: 2,000\n" in text(state, 80)
    for seed in (1, 2):
        after(state, events.SkippedEvent("done", variant="a", seed=seed))
    assert " scoring\n" in text(state, 80)
    after(state, events.NoteEvent("scoring test", passing=True, variant="a", seed=1))
    assert " a seed 1: scoring test\n" in text(state, 80)
    after(state, events.ScoredEvent(Comparison(())))
    after(state, events.EvaluatedEvent(("test",), variant="a", seed=1))
    assert "skipped: done" in text(state, 80)


def test_final_board_has_no_progress_bar() -> None:
    state = after(
        board("a"),
        events.StartedEvent("t", 10, 5, "cpu", "fp32", variant="a", seed=1),
        events.ProgressEvent(10, 10, 1.5, 1e-3, 100.0, None, 0.0, variant="a", seed=1),
        events.FinishedEvent(10, 3700.0, "steps", variant="a", seed=1),
        events.ScoredEvent(Comparison(())),
    )
    title, run = text(state, 80).splitlines()
    assert title == "translation/toy: 1 of 1 done"
    assert run.split(maxsplit=1) == ["a", "done at step 10 after 1h01m (steps)"]


def test_interrupted_run_is_stopped() -> None:
    state = halfway()
    state.interrupt()
    lines = text(state, 80).splitlines()
    assert lines[2] == "synthesizer-random  validation BLEU 61.0  stopped"
    assert not any("left" in line for line in lines)


def parallel() -> Board:
    """Return a board of two of four trainings at a time."""
    state = board("scaled-dot", "synthesizer-random", "linear", "dot", jobs=2)
    for run in (RUN, NEXT):
        state.update(events.StartedEvent("translation/toy", 1000, 1234567, "cpu", "bf16", **run))
    return after(
        state,
        events.ProgressEvent(600, 1000, 1.25, 8.2e-4, 7712.3, 0.712, 80.0, **RUN),
        events.ProgressEvent(40, 1000, 6.5, 8.2e-5, 4100.0, 1.5, 960.0, **NEXT),
    )


def test_parallel_runs_have_a_progress_line_each() -> None:
    lines = text(parallel(), 200).splitlines()
    assert len(lines) == 7
    assert " scaled-dot: step 600/1,000: training loss 1.250, " in lines[1]
    assert " synthesizer-random: step 40/1,000: training loss 6.500, " in lines[2]


def test_scoring_and_failure_of_parallel_runs() -> None:
    state = after(
        parallel(),
        events.FinishedEvent(1000, 100.0, "steps", **RUN),
        events.NoteEvent("scoring test", passing=True, **RUN),
    )
    lines = text(state, 140).splitlines()
    assert lines[0] == "translation/toy: 1 of 4 done, about 16m00s left"
    assert lines[1].endswith(" scaled-dot: scoring test")
    state.update(events.EvaluatedEvent(("test",), **RUN))
    state.update(events.FailedEvent("step 7: no", 3, **NEXT))
    lines = text(state, 80).splitlines()
    assert lines[0] == "translation/toy: 1 of 4 done, 1 failed"
    assert lines[3].split() == ["synthesizer-random", "failed:", "step", "7:", "no"]


def test_remaining_time_is_divided_by_the_number_of_jobs() -> None:
    """Of the running trainings 80 s and 960 s remain; two wait, each of which takes their mean time."""
    mean = (80 / 0.4 + 960 / 0.96) / 2
    assert parallel().remaining_seconds() == pytest.approx((80 + 960 + 2 * mean) / 2)
    assert halfway().remaining_seconds() == pytest.approx(20 + 90.2)


HOSTILE = "\x1b]0;t\x07\x9b31m[red]\u202e\n\r\u65e5\u672c"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_names_are_escaped(width: int) -> None:
    state = after(
        board(HOSTILE, "b", recipe=HOSTILE),
        events.StartedEvent("t", 10, 5, "cpu", "fp32", variant=HOSTILE, seed=1),
        events.ProgressEvent(5, 10, 1.5, 1e-3, 100.0, 1.0, 5.0, variant=HOSTILE, seed=1),
        events.NoteEvent(HOSTILE),
    )
    assert not set(text(state, width)) & set("\x1b\x07\x9b\u202e\r")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, "0s"), (59.6, "1m00s"), (72, "1m12s"), (3599.9, "1h00m"), (11100, "3h05m")]
)
def test_durations(seconds: float, expected: str) -> None:
    assert quantities.duration(seconds) == expected


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            events.StartedEvent("t", 2000, 1234567, "cpu", "bf16", 500, **RUN),
            "scaled-dot seed 1: 1,234,567 parameters, cpu, bf16, 2,000 steps, resumed from step 500",
        ),
        (
            events.StartedEvent("t", 30, 5, "cpu", "fp32", warmup=100, **RUN),
            "scaled-dot seed 1: 5 parameters, cpu, fp32, 30 steps, warming up for 100 (longer than the training)",
        ),
        (
            events.ProgressEvent(50, 2000, 7.8123, 5e-5, 7712.3, 1.25, 723.0, **RUN),
            "scaled-dot seed 1: step 50/2,000: training loss 7.812, learning rate 5.0e-05, 7,712 tokens/s, "
            "gradient norm 1.25, 12m03s left",
        ),
        (
            events.ValidatedEvent(500, 4.321, 75.26, "bleu", 12.34, 13.0, **RUN),
            "scaled-dot seed 1: step 500: validation loss 4.321, perplexity 75.26, validation BLEU 12.3 (best 13.0)",
        ),
        (
            events.ValidatedEvent(500, 4.321, 75.26, "loss", 4.321, 4.321, **RUN),
            "scaled-dot seed 1: step 500: validation loss 4.321, perplexity 75.26",
        ),
        (
            events.FinishedEvent(2000, 2530.0, "steps", **RUN),
            "scaled-dot seed 1: done at step 2,000 after 42m10s (steps)",
        ),
        (events.SkippedEvent("done before", **RUN), "scaled-dot seed 1: skipped: done before"),
        (events.FailedEvent("a\nb", 3, **RUN), "scaled-dot seed 1: failed: a b"),
        (events.EvaluatedEvent(("test", "valid"), **RUN), "scaled-dot seed 1: scored test, valid"),
        (events.NoteEvent("a \x1b[0m\nb"), "a \\x1b[0m|b"),
        (events.PreparedEvent(("29,000 rows", "3 dropped")), "29,000 rows|3 dropped"),
    ],
)
def test_log_lines(event: events.Event, line: str) -> None:
    assert "|".join(training_board.log_lines(event)) == line


def test_json_of_events_has_null_for_nan_and_infinity() -> None:
    null = dict.fromkeys(("loss", "tokens_per_second", "grad_norm", "remaining_seconds"))
    plain = {"event": "progress", "step": 1, "steps": 2, "lr": 0.1, "loss_name": "training loss"}
    assert events.ProgressEvent(1, 2, math.nan, 0.1, math.inf, **RUN).json() == {**RUN, **plain, **null}
    assert events.SavedEvent(3, Path("a/b")).json()["path"] == "a/b"
