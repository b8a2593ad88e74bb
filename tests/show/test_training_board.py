"""The board of training as exact text, and one line a event for logs."""

import math
from pathlib import Path

import pytest
from rich.cells import cell_len

from attnkit.show import training_board
from attnkit.show.training_board import Board, BoardRun
from attnkit.train import events

RUN = {"variant": "scaled-dot", "seed": 1}
NEXT = {"variant": "synthesizer-random", "seed": 1}


def board(*variants: str, seeds: tuple[int, ...] = (1,)) -> Board:
    jobs = tuple(BoardRun(variant, seed) for variant in variants for seed in seeds)
    return Board("translation/toy", jobs, since=0.0)


def after(state: Board, *happened: tuple[float, events.Event]) -> Board:
    for now, event in happened:
        state = state.after(event, now)
    return state


def halfway() -> Board:
    """The first of three trainings is done, the second has done 600 of 1,000 steps."""
    state = after(
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
        state = state.after(line, 93 + 7.5 * i)
    return after(
        state,
        (153, events.ValidatedEvent(600, 0.9, 2.4, "bleu", 61.0, 61.0, **NEXT)),
        (154, events.SavedEvent(600, Path("runs/x"), **NEXT)),
    )


def text(state: Board, width: int, *, ascii: bool = False, height: int = 24, now: float) -> str:
    lines = training_board.draw(state, width=width, height=height, ascii=ascii, now=now)
    assert all(line.cell_len <= width for line in lines)
    return "\n".join(line.plain for line in lines)


def test_a_wide_screen_shows_everything() -> None:
    assert text(halfway(), 200, now=155) == (
        "translation/toy · 1 of 3 done · about 1m48s left\n"
        " ✓ scaled-dot          done      bleu 88.2       1,000 steps  1m30s\n"
        " ▶ synthesizer-random  training  bleu 61.0\n"
        " · linear              waiting\n"
        "\n"
        " ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╸────────────────────────"
        "   60%  600/1,000  18s left\n"
        " loss 1.000 █▇▆▅▄▃▂▁ · 7,712 tokens/s · lr 8.2e-04 · grad 0.71 · cpu bf16 "
        "· 1,034,567 parameters\n"
        " saved step 600"
    )


def test_eighty_columns_leave_out_what_does_not_fit() -> None:
    assert text(halfway(), 80, now=155) == (
        "translation/toy · 1 of 3 done · about 1m48s left\n"
        " ✓ scaled-dot          done      bleu 88.2       1,000 steps  1m30s\n"
        " ▶ synthesizer-random  training  bleu 61.0\n"
        " · linear              waiting\n"
        "\n"
        " ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╸─────────────────────   60%  600/1,000  18s left\n"
        " loss 1.000 █▇▆▅▄▃▂▁ · 7,712 tokens/s · lr 8.2e-04 · grad 0.71 · cpu bf16\n"
        " saved step 600"
    )


def test_forty_columns_of_ascii() -> None:
    assert text(halfway(), 40, ascii=True, now=155) == (
        "translation/toy | 1 of 3 done\n"
        " + scaled-dot        done      bleu 88.2\n"
        " > synthesizer-ran~  training  bleu 61.0\n"
        " . linear            waiting\n"
        "\n"
        " =====>-----   60%  600/1,000  18s left\n"
        " loss 1.000 #*+=~-._ | 7,712 tokens/s\n"
        " saved step 600"
    )


def test_ascii_is_ascii() -> None:
    for width in (40, 80, 200):
        assert text(halfway(), width, ascii=True, now=155).isascii()


def test_before_the_first_step_the_board_tells_what_it_waits_for() -> None:
    state = board("a", seeds=(1, 2))
    assert text(state, 80, now=12.4) == (
        "translation/toy · 0 of 2 done\n"
        " · a  seed 1  waiting\n"
        " · a  seed 2  waiting\n"
        "\n"
        " preparing data  12s"
    )
    state = state.after(events.StartedEvent("t", 10, 5, "cpu", "fp32", variant="a", seed=1), 20)
    assert text(state, 80, now=23).endswith("\n first steps  3s")


def test_the_last_board_has_no_bar() -> None:
    state = after(
        board("a"),
        (1, events.StartedEvent("t", 10, 5, "cpu", "fp32", variant="a", seed=1)),
        (2, events.ProgressEvent(10, 10, 1.5, 1e-3, 100.0, None, 0.0, variant="a", seed=1)),
        (3, events.FinishedEvent(10, 3700.0, "steps", variant="a", seed=1)),
        (9, events.ScoredEvent(())),
    )
    assert text(state, 80, now=9) == (
        "translation/toy · 1 of 1 done\n ✓ a  done                         10 steps  1h01m"
    )


def test_a_stage_that_passes_has_a_clock_that_goes_on() -> None:
    state = board("a").after(events.NoteEvent("preparing encode: 1,000", passing=True), 5)
    state = state.after(events.NoteEvent("preparing encode: 2,000", passing=True), 8)
    assert text(state, 80, now=9).endswith("\n preparing encode: 2,000  4s")
    state = state.after(events.SkippedEvent("done", variant="a", seed=1), 10)
    assert text(state, 80, now=11).endswith("\n scoring  1s")
    state = state.after(events.NoteEvent("scoring test", passing=True, variant="a", seed=1), 12)
    assert text(state, 80, now=13).endswith("\n scoring test: a seed 1  1s")


def test_an_interruption_leaves_its_mark() -> None:
    assert " ■ synthesizer-random  stopped   bleu 61.0" in text(halfway().stopped(), 80, now=160)


def test_more_jobs_than_lines_are_cut_around_the_current_one() -> None:
    state = board(*(f"v{i:02}" for i in range(40)))
    for i in range(20):
        state = state.after(events.SkippedEvent("done", variant=f"v{i:02}", seed=1), 1)
    state = state.after(events.StartedEvent("t", 10, 5, "cpu", "fp32", variant="v20", seed=1), 1)
    lines = text(state, 80, height=12, now=1).splitlines()
    assert len(lines) <= 12
    assert any("v20" in line and "training" in line for line in lines)
    assert any("more" in line for line in lines)


def test_the_remaining_time_counts_down_between_reports() -> None:
    state = halfway()
    assert state.remaining(153) == 20
    assert state.remaining(163) == 10
    assert state.remaining(999) == 0


def test_waiting_jobs_are_expected_to_take_as_long_as_the_finished_ones() -> None:
    assert halfway().remaining_in_all(153) == pytest.approx(20 + 90.2)


HOSTILE = "\x1b]0;t\x07\x9b31m[red]\u202e\n\r\u65e5\u672c"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_names_reach_the_screen_as_text(width: int) -> None:
    state = Board(HOSTILE, (BoardRun(HOSTILE, 1), BoardRun("b", 1)), since=0)
    state = after(
        state,
        (1, events.StartedEvent("t", 10, 5, "cpu", "fp32", variant=HOSTILE, seed=1)),
        (2, events.ProgressEvent(5, 10, 1.5, 1e-3, 100.0, 1.0, 5.0, variant=HOSTILE, seed=1)),
        (3, events.NoteEvent(HOSTILE)),
    )
    shown = text(state, width, now=3)
    assert not set(shown) & set("\x1b\x07\x9b\u202e\r")
    assert len(shown.split("\n")) == 7


def test_numbers_that_are_none_do_not_break_the_board() -> None:
    state = board("a").after(events.StartedEvent("t", 10, 5, "cpu", "fp32", variant="a", seed=1), 1)
    for loss in (math.nan, math.inf, 2.0):
        line = events.ProgressEvent(5, 10, loss, 1e-3, 0.0, None, None, variant="a", seed=1)
        state = state.after(line, 2)
    assert " loss 2.000   ▁ · 0 tokens/s" in text(state, 80, now=3)


def test_a_sparkline_shows_means_of_equal_stretches() -> None:
    assert training_board.sparkline([0, 0, 7, 7, 1, 1], 3, "01234567") == "071"
    assert training_board.sparkline([5.0, 5.0], 10, "01") == "00"
    assert training_board.sparkline([], 10, "01") == ""


def test_a_bar_is_as_wide_as_asked() -> None:
    for share in (-1.0, 0.0, 0.001, 0.5, 0.999, 1.0, 2.0):
        assert training_board.bar(share, 10, training_board.ASCII).cell_len == 10
    assert training_board.bar(0.5, 10, training_board.ASCII).plain == "====>-----"
    assert training_board.bar(1.0, 4, training_board.ASCII).plain == "===="


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0s"), (59.6, "1m00s"), (72, "1m12s"), (3599.9, "1h00m"), (11100, "3h05m")],
)
def test_durations_are_as_people_say_them(seconds: float, words: str) -> None:
    assert training_board.duration(seconds) == words


def test_cutting_respects_wide_characters() -> None:
    assert training_board.fit("\u65e5\u672c\u8a9e", 5, training_board.ASCII) == "\u65e5\u672c~"
    assert cell_len(training_board.fit("\u65e5\u672c\u8a9e", 4, training_board.ASCII)) <= 4
    assert training_board.pad("\u65e5", 4) == "\u65e5  "


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            events.StartedEvent("t", 2000, 1234567, "cpu", "bf16", 500, **RUN),
            "scaled-dot seed 1: 1,234,567 parameters, cpu, bf16, 2,000 steps, "
            "resumed from step 500",
        ),
        (
            events.ProgressEvent(50, 2000, 7.8123, 5e-5, 7712.3, 1.25, 723.0, **RUN),
            "scaled-dot seed 1: step 50/2,000 loss 7.812 lr 5.0e-05 7,712 tokens/s grad 1.25 "
            "12m03s left",
        ),
        (
            events.ValidatedEvent(500, 4.321, 75.26, "bleu", 12.34, 13.0, **RUN),
            "scaled-dot seed 1: step 500 validation loss 4.321 perplexity 75.26 bleu 12.3 "
            "(best 13.0)",
        ),
        (
            events.ValidatedEvent(500, 4.321, 75.26, "loss", 4.321, 4.321, **RUN),
            "scaled-dot seed 1: step 500 validation loss 4.321 perplexity 75.26",
        ),
        (
            events.FinishedEvent(2000, 2530.0, "steps", **RUN),
            "scaled-dot seed 1: done at step 2,000 after 42m10s (steps)",
        ),
        (events.SkippedEvent("done before", **RUN), "scaled-dot seed 1: skipped: done before"),
        (events.NoteEvent("a \x1b[0m\nb"), "a \\x1b[0m|b"),
        (events.PreparedEvent(("29,000 rows", "3 dropped")), "29,000 rows|3 dropped"),
    ],
)
def test_a_log_line_says_what_happened(event: events.Event, line: str) -> None:
    assert "|".join(training_board.plain(event)) == line


def test_json_has_no_number_that_json_has_not() -> None:
    event = events.ProgressEvent(1, 2, math.nan, 0.1, math.inf, **RUN)
    assert event.json() == {
        "event": "progress", "variant": "scaled-dot", "seed": 1, "step": 1, "steps": 2,
        "loss": None, "lr": 0.1, "tokens_per_second": None, "grad_norm": None,
        "remaining_seconds": None,
    }  # fmt: skip
    assert events.SavedEvent(3, Path("a/b")).json()["path"] == "a/b"
