"""The board of training as exact text, and one line a event for logs."""

import io
import math
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from attnkit.scoring import Comparison
from attnkit.show import training_board
from attnkit.show.training_board import Board, BoardRun
from attnkit.train import events

RUN = {"variant": "scaled-dot", "seed": 1}
NEXT = {"variant": "synthesizer-random", "seed": 1}


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def board(
    *variants: str, seeds: tuple[int, ...] = (1,), recipe: str = "translation/toy", jobs: int = 1
) -> Board:
    runs = tuple(BoardRun(variant, seed) for variant in variants for seed in seeds)
    return Board(recipe, runs, Clock(), jobs)


def at(state: Board, *happened: tuple[float, events.Event | None]) -> Board:
    """The board after events at these seconds; None: time passes."""
    for now, event in happened:
        state.clock.now = now  # type: ignore[attr-defined]
        if event is not None:
            state.update(event)
    return state


def halfway() -> Board:
    """The first of three trainings is done, the second has done 600 of 1,000 steps."""
    state = at(
        board("scaled-dot", "synthesizer-random", "linear"),
        (1, events.PreparedEvent(("29,000 rows",))),
        (2, events.StartedEvent("translation/toy", 1000, 1234567, "cpu", "bf16", **RUN)),
        (90, events.ValidatedEvent(1000, 0.7, 2.0, "bleu", 88.24, 88.4, **RUN)),
        (92, events.FinishedEvent(1000, 90.2, "steps", **RUN)),
        (93, events.StartedEvent("translation/toy", 1000, 1034567, "cpu", "bf16", **NEXT)),
    )
    for i in range(1, 9):
        line = events.ProgressEvent(
            75 * i, 1000, 9.0 - i, 8.2e-4, 7712.3, 0.712, 80 - 7.5 * i, **NEXT
        )
        at(state, (93 + 7.5 * i, line))
    return at(
        state,
        (153, events.ValidatedEvent(600, 0.9, 2.4, "bleu", 61.0, 61.0, **NEXT)),
        (155, None),
    )


class Encoded(io.StringIO):
    """Text with an encoding, by which rich chooses glyphs."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


def text(state: Board, width: int, *, ascii: bool = False, height: int = 24) -> str:
    out = Encoded("ascii" if ascii else "utf-8")
    Console(file=out, width=width, height=height, color_system=None, markup=False,
            highlight=False, emoji=False).print(state)  # fmt: skip
    lines = out.getvalue().splitlines()
    assert all(cell_len(line) <= width for line in lines)
    return "\n".join(line.rstrip() for line in lines)


RUNS = [
    "translation/toy · 1 of 3 done · about 1m48s left",
    " ✓  scaled-dot          done      validation BLEU 88.2  1,000 steps, 1m30s",
    " ▶  synthesizer-random  training  validation BLEU 61.0",
    " ·  linear              waiting",
]


def test_every_run_has_a_line_and_the_current_one_its_numbers() -> None:
    lines = text(halfway(), 200).splitlines()
    assert lines[:4] == RUNS
    assert lines[4].split(maxsplit=1)[1] == (
        "60% of 1,000, 18s left, training loss 1.000, 7,712 tokens/s, learning rate 8.2e-04, "
        "gradient norm 0.71, cpu bf16, 1,034,567 parameters"
    )
    eighty = text(halfway(), 80)
    assert eighty.splitlines()[:4] == RUNS
    assert "1,034,567 parameters" in " ".join(eighty.split())


def test_the_rate_is_said_to_warm_up_and_the_machine_to_be_busy() -> None:
    state = Board("t", (BoardRun("a", 1), BoardRun("b", 1)), Clock(), busy=lambda: "machine busy")
    run = {"variant": "a", "seed": 1}
    at(state, (1, events.StartedEvent("t", 10, 5, "cpu", "fp32", warmup=4, **run)))
    for step, warming in ((3, True), (4, False)):
        at(state, (step, events.ProgressEvent(step, 10, 1.5, 1e-3, 100.0, None, 6.0, **run)))
        shown = text(state, 200)
        assert ("learning rate 1.0e-03 (warming up)" in shown) == warming
        assert shown.split("\n")[0].endswith("left · machine busy")


@pytest.mark.parametrize("ascii", [False, True])
def test_any_width_names_every_run_with_its_state(ascii: bool) -> None:
    for width in range(40, 161):
        shown = text(halfway(), width, ascii=ascii)
        assert shown.isascii() == ascii
        names, states = ("scaled-dot", "synthesizer-", "linear"), ("done", "training", "waiting")
        for line, name, state in zip(shown.splitlines()[1:4], names, states, strict=True):
            assert name in line
            assert f"  {state}" in line
        assert "60% of 1,000, 18s left" in shown


def test_before_the_first_step_the_board_shows_what_it_waits_for() -> None:
    state = at(board("a", seeds=(1, 2)), (12.4, None))
    assert text(state, 80) == (
        "translation/toy · 0 of 2 done\n"
        " ·  a seed 1        waiting\n"
        " ·  a seed 2        waiting\n"
        " preparing data  12s"
    )
    started = events.StartedEvent("t", 10, 5, "cpu", "fp32", variant="a", seed=1)
    assert text(at(state, (20, started), (23, None)), 80).endswith("\nfirst steps  3s")


def test_the_last_board_has_no_bar() -> None:
    state = at(
        board("a"),
        (1, events.StartedEvent("t", 10, 5, "cpu", "fp32", variant="a", seed=1)),
        (2, events.ProgressEvent(10, 10, 1.5, 1e-3, 100.0, None, 0.0, variant="a", seed=1)),
        (3, events.FinishedEvent(10, 3700.0, "steps", variant="a", seed=1)),
        (9, events.ScoredEvent(Comparison(()))),
    )
    title, run = text(state, 80).splitlines()
    assert title == "translation/toy · 1 of 1 done"
    assert run.split() == ["✓", "a", "done", "10", "steps,", "1h01m"]


def test_the_clock_of_a_stage_runs_on_while_its_numbers_change() -> None:
    state = at(
        board("a"),
        (5, events.NoteEvent("preparing encode: 1,000", passing=True)),
        (8, events.NoteEvent("preparing encode: 2,000", passing=True)),
        (9, None),
    )
    assert text(state, 80).endswith("\n preparing encode: 2,000  4s")
    at(state, (10, events.SkippedEvent("done", variant="a", seed=1)), (11, None))
    assert text(state, 80).endswith("\n scoring  1s")
    note = events.NoteEvent("scoring test", passing=True, variant="a", seed=1)
    at(state, (12, note), (13, None))
    assert text(state, 80).endswith("\na: scoring test  1s")


def test_an_interruption_leaves_its_mark() -> None:
    state = halfway()
    state.interrupt()
    lines = text(state, 80).splitlines()
    assert lines[2].startswith(" ■  synthesizer-random  stopped   validation BLEU 61.0")
    assert not any("left" in line for line in lines)


def test_more_runs_than_lines_are_cut_around_the_current_one() -> None:
    state = board(*(f"v{i:02}" for i in range(40)))
    for i in range(20):
        state.update(events.SkippedEvent("done", variant=f"v{i:02}", seed=1))
    state.update(events.StartedEvent("t", 10, 5, "cpu", "fp32", variant="v20", seed=1))
    lines = text(state, 80, height=12).splitlines()
    assert len(lines) <= 11
    assert any("v20" in line and "training" in line for line in lines)
    assert any("more" in line for line in lines)
    state.whole = True
    assert sum(" v" in line for line in text(state, 80, height=12).splitlines()) == 40


def test_the_remaining_time_counts_down_between_reports() -> None:
    state = halfway()
    for now, left in ((153, 20), (163, 10), (999, 0)):
        assert at(state, (now, None)).runs[1].remaining(now) == left
    assert at(halfway(), (153, None)).remaining_in_all() == pytest.approx(20 + 90.2)


def both() -> Board:
    """Two of four trainings at a time."""
    state = board("scaled-dot", "synthesizer-random", "linear", "dot", jobs=2)
    for run in (RUN, NEXT):
        begun = events.StartedEvent("translation/toy", 1000, 1234567, "cpu", "bf16", **run)
        at(state, (2, begun))
    first = events.ProgressEvent(600, 1000, 1.25, 8.2e-4, 7712.3, 0.712, 80.0, **RUN)
    other = events.ProgressEvent(40, 1000, 6.5, 8.2e-5, 4100.0, 1.5, 960.0, **NEXT)
    return at(state, (62, first), (67, other))


def test_two_at_a_time_have_a_line_each() -> None:
    lines = text(both(), 80).splitlines()
    assert len(lines) == 7
    assert " scaled-dot: 60% of 1,000, 1m15s left, training loss 1.250, " in lines[5]
    assert " synthesizer-random: 4% of 1,000, 16m00s left, " in lines[6]


def test_a_run_is_scored_while_another_trains_and_a_failure_is_marked() -> None:
    state = at(
        both(),
        (70, events.FinishedEvent(1000, 100.0, "steps", **RUN)),
        (71, events.NoteEvent("scoring test", passing=True, **RUN)),
        (74, None),
    )
    lines = text(state, 80).splitlines()
    assert lines[0] == "translation/toy · 1 of 4 done · about 15m53s left"
    assert lines[1].startswith(" ▶  scaled-dot          scoring")
    assert lines[5] == "scaled-dot: scoring test  3s"
    state.update(events.EvaluatedEvent(("test",), **RUN))
    assert text(state, 80).splitlines()[1].startswith(" ✓  scaled-dot          done")
    state.update(events.FailedEvent("step 7: no", 3, **NEXT))
    lines = text(state, 80).splitlines()
    assert lines[0] == "translation/toy · 1 of 4 done · 1 failed"
    assert lines[2].startswith(" ✗  synthesizer-random  failed")


def test_what_waits_is_shared_out_over_the_jobs() -> None:
    """One ends in 75 s, the other in 960 s; two wait, of which each takes as long as those two."""
    usual = (140 + 1025) / 2
    assert both().remaining_in_all() == pytest.approx((75 + 960 + 2 * usual) / 2)


HOSTILE = "\x1b]0;t\x07\x9b31m[red]\u202e\n\r\u65e5\u672c"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_names_reach_the_screen_as_text(width: int) -> None:
    state = at(
        board(HOSTILE, "b", recipe=HOSTILE),
        (1, events.StartedEvent("t", 10, 5, "cpu", "fp32", variant=HOSTILE, seed=1)),
        (2, events.ProgressEvent(5, 10, 1.5, 1e-3, 100.0, 1.0, 5.0, variant=HOSTILE, seed=1)),
        (3, events.NoteEvent(HOSTILE)),
    )
    assert not set(text(state, width)) & set("\x1b\x07\x9b\u202e\r")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0s"), (59.6, "1m00s"), (72, "1m12s"), (3599.9, "1h00m"), (11100, "3h05m")],
)
def test_durations_are_as_people_say_them(seconds: float, words: str) -> None:
    assert training_board.duration(seconds) == words


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            events.StartedEvent("t", 2000, 1234567, "cpu", "bf16", 500, **RUN),
            "scaled-dot seed 1: 1,234,567 parameters, cpu, bf16, 2,000 steps, "
            "resumed from step 500",
        ),
        (
            events.StartedEvent("t", 30, 5, "cpu", "fp32", warmup=100, **RUN),
            "scaled-dot seed 1: 5 parameters, cpu, fp32, 30 steps, warming up for 100 "
            "(longer than the training)",
        ),
        (
            events.ProgressEvent(50, 2000, 7.8123, 5e-5, 7712.3, 1.25, 723.0, **RUN),
            "scaled-dot seed 1: step 50/2,000: training loss 7.812, learning rate 5.0e-05, "
            "7,712 tokens/s, gradient norm 1.25, "
            "12m03s left",
        ),
        (
            events.ValidatedEvent(500, 4.321, 75.26, "bleu", 12.34, 13.0, **RUN),
            "scaled-dot seed 1: step 500: validation loss 4.321, perplexity 75.26, "
            "validation BLEU 12.3 "
            "(best 13.0)",
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
def test_a_log_line_says_what_happened(event: events.Event, line: str) -> None:
    assert "|".join(training_board.log_lines(event)) == line


def test_json_has_no_number_that_json_has_not() -> None:
    event = events.ProgressEvent(1, 2, math.nan, 0.1, math.inf, **RUN)
    assert event.json() == {
        "event": "progress", "variant": "scaled-dot", "seed": 1, "step": 1, "steps": 2,
        "loss": None, "lr": 0.1, "tokens_per_second": None, "grad_norm": None,
        "remaining_seconds": None, "loss_name": "training loss",
    }  # fmt: skip
    assert events.SavedEvent(3, Path("a/b")).json()["path"] == "a/b"
