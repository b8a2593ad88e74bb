"""Training on a screen: a live display of all runs, and one line an event for logs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, OverflowMethod, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from attnkit.text import safe_text
from attnkit.train import events

State = Literal["waiting", "training", "done", "skipped", "stopped"]
STATES: dict[State, tuple[str, str, str]] = {
    "waiting": ("·", ".", "dim"),
    "training": ("▶", ">", "bold cyan"),
    "done": ("✓", "+", "green"),
    "skipped": ("✓", "+", "green"),
    "stopped": ("■", "x", "yellow"),
}
"""Mark, mark in ASCII, and style."""
WIDE = 70  # cells from which steps and duration of finished runs are shown
LONGEST_BAR = 60
OTHER_LINES = 7  # lines of the display beside those of the runs, at most, and one to spare


@dataclass
class BoardRun:
    """One variant with one seed."""

    variant: str
    seed: int
    state: State = "waiting"
    step: int = 0
    seconds: float | None = None
    validation: str = ""  # the last validation, such as "bleu 38.2"


class Board:
    """A rich renderable of all runs and of the one that is training, updated by events."""

    def __init__(
        self, recipe: str, runs: tuple[BoardRun, ...], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.recipe, self.runs, self.clock = recipe, runs, clock
        self.whole = False  # draw every run, also those for which the screen has no line
        self.message = ""
        self._phase = "preparing data"  # while no run is training
        self._current: BoardRun | None = None
        self._since = clock()  # the beginning of the current run, or else of the phase
        self._started: events.StartedEvent | None = None
        self._progress: events.ProgressEvent | None = None
        self._progress_at = 0.0

    def update(self, event: events.Event) -> None:
        """Take in what happened."""
        key = (event.variant, event.seed)
        run = next((run for run in self.runs if (run.variant, run.seed) == key), None)
        match event:
            case events.NoteEvent(passing=True):
                self._show_phase(event)
            case events.NoteEvent():
                self.message = event.text
            case events.PreparedEvent():
                self._idle("building the model")
            case events.ScoredEvent():
                self._idle("")
            case _ if run is not None:
                self._update_run(run, event)

    def _update_run(self, run: BoardRun, event: events.Event) -> None:
        match event:
            case events.StartedEvent():
                resumed = event.resumed_from
                run.state, run.step = "training", resumed or 0
                self._current, self._started, self._progress = run, event, None
                self._since = self.clock()
                self.message = "" if resumed is None else f"resumed from step {resumed:,}"
            case events.ProgressEvent():
                run.state, run.step = "training", event.step
                self._progress, self._progress_at = event, self.clock()
            case events.ValidatedEvent():
                run.validation = score_text(event.monitor, event.value)
            case events.SavedEvent():
                run.step, self.message = event.step, f"saved step {event.step:,}"
            case events.FinishedEvent():
                run.state, run.step, run.seconds = "done", event.step, event.seconds
                self._idle("preparing the next run")
            case events.SkippedEvent():
                run.state = "skipped"
                self._idle("preparing the next run")

    def interrupt(self) -> None:
        """What was training is stopped, the rest waits."""
        for run in self.runs:
            run.state = "stopped" if run.state == "training" else run.state
        self._current, self._progress, self._phase = None, None, ""

    def _idle(self, phase: str) -> None:
        self._phase = "scoring" if phase and self._trained == len(self.runs) else phase
        self._current = self._progress = None
        self._since, self.message = self.clock(), ""

    def _show_phase(self, event: events.NoteEvent) -> None:
        """Show a stage; its clock is not reset while only its numbers change."""
        text = event.text
        if self._trained == len(self.runs) and event.variant is not None:
            text = f"{text}: {event.variant} seed {event.seed}"
        if text.split(":")[0] != self._phase.split(":")[0]:
            self._since = self.clock()
        self._phase, self._current, self._progress = text, None, None

    @property
    def _trained(self) -> int:
        return sum(run.state in ("done", "skipped") for run in self.runs)

    def remaining(self) -> float | None:
        """Seconds until the current run ends, counted down since it was last reported."""
        progress = self._progress
        if progress is None or progress.remaining_seconds is None:
            return None
        return max(0.0, progress.remaining_seconds - (self.clock() - self._progress_at))

    def remaining_in_all(self) -> float | None:
        """Seconds until the last run ends, if the waiting ones take as long as the others."""
        left = self.remaining()
        if left is None:
            return None
        times = [run.seconds for run in self.runs if run.seconds]
        times = times or [self.clock() - self._since + left]
        return left + sum(run.state == "waiting" for run in self.runs) * sum(times) / len(times)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ascii_only, width = options.ascii_only, options.max_width
        progress = self._progress  # it may change meanwhile: rich draws in a thread of its own
        parts = [one_line(self.recipe), f"{self._trained} of {len(self.runs)} done"]
        left = self.remaining_in_all()
        if left is not None and len(self.runs) > 1:
            parts.append(f"about {duration(left)} left")
        yield _line(parts, width, ascii_only, "bold")
        yield self._runs(console.size.height - OTHER_LINES, width, ascii_only)
        if progress is not None:
            yield ""
            bar = Table.grid(padding=(0, 2, 0, 0))
            bar.add_column(max_width=LONGEST_BAR)
            share = progress.step / max(1, progress.steps)
            cells = [f"{share:.0%}", f"{progress.step:,}/{progress.steps:,}"]
            run_left = self.remaining()
            cells += [] if run_left is None else [f"{duration(run_left)} left"]
            for _ in cells:
                bar.add_column(no_wrap=True)
            bar.add_row(ProgressBar(progress.steps, progress.step), *cells)
            yield bar
            yield _line(self._numbers(progress), width, ascii_only)
        elif self._phase or self._current is not None:
            phase = self._phase if self._current is None else "first steps"
            yield ""
            seconds = duration(self.clock() - self._since)
            yield _line([f" {one_line(phase)}  {seconds}"], width, ascii_only, "cyan")
        if self.message:
            yield _line([f" {one_line(self.message)}"], width, ascii_only, "dim")

    def _runs(self, room: int, width: int, ascii_only: bool) -> Table:
        """A line for each run, or for those around the current one where not all fit."""
        first, last = 0, len(self.runs)
        if last > max(3, room) and not self.whole:
            unfinished = (at for at, run in enumerate(self.runs) if run.state in
                          ("training", "waiting"))  # fmt: skip
            room = max(2, room - 1)
            first = max(0, min(next(unfinished, last) - room // 2, last - room))
            last = first + room
        seeds = len({run.seed for run in self.runs}) > 1
        grid = Table.grid(padding=(0, 2, 0, 0))
        for run in self.runs[first:last]:
            glyph, ascii_glyph, style = STATES[run.state]
            name = _line([one_line(run.variant)], width, ascii_only)
            mark = f" {ascii_glyph if ascii_only else glyph}"
            cells = [f"seed {run.seed}"] if seeds else []
            cells += [f"{run.state:8}", run.validation]
            if width >= WIDE:
                finished = run.step and run.state != "training"
                cells.append(f"{run.step:>7,} steps" if finished else "")
                cells.append("" if run.seconds is None else duration(run.seconds))
            row_style = style if run.state in ("training", "waiting") else None
            grid.add_row(Text(mark, style), name, *map(Text, cells), style=row_style)
        for column in (*grid.columns[:1], *grid.columns[2:]):
            column.no_wrap = True  # the names are what is cut
        if hidden := len(self.runs) - (last - first):
            grid.add_row("", Text(f"and {hidden} more", "dim"))
        return grid

    def _numbers(self, progress: events.ProgressEvent) -> list[str]:
        """Loss, speed, learning rate, gradient norm, and what the run trains on."""
        parts = [
            f" loss {progress.loss:.3f}",
            f"{progress.tokens_per_second:,.0f} tokens/s",
            f"lr {progress.lr:.1e}",
        ]
        if progress.grad_norm is not None:
            parts.append(f"grad {progress.grad_norm:.2f}")
        if self._started is not None:
            parts.append(f"{self._started.device} {self._started.precision}")
            parts.append(f"{self._started.parameters:,} parameters")
        return parts


def _line(parts: list[str], width: int, ascii_only: bool, style: str = "") -> Text:
    """One line of as many parts as fit."""
    separator = " | " if ascii_only else " · "
    while len(parts) > 1 and cell_len(separator.join(parts)) > width:
        parts = parts[:-1]
    overflow: OverflowMethod = "crop" if ascii_only else "ellipsis"
    return Text(separator.join(parts), style, no_wrap=True, overflow=overflow)


def one_line(text: str) -> str:
    """Text from anywhere as harmless text on one line."""
    return " ".join(safe_text(text).split())


def duration(seconds: float) -> str:
    """Seconds for people: 9s, 1m12s, 3h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def score_text(monitor: str, value: float) -> str:
    """The result of a validation: scores have one decimal, losses three."""
    return f"{monitor} {value:.3f}" if monitor == "loss" else f"{monitor} {value:.1f}"


def log_lines(event: events.Event) -> list[str]:
    """An event as lines of a log; some events are not worth a line."""
    name = f"{one_line(event.variant)} seed {event.seed}: " if event.variant is not None else ""
    match event:
        case events.NoteEvent():
            return [name + one_line(line) for line in event.text.split("\n")]
        case events.PreparedEvent():
            return [one_line(line) for line in event.reports]
        case events.StartedEvent():
            resumed = event.resumed_from
            origin = f", resumed from step {resumed:,}" if resumed is not None else ""
            return [
                f"{name}{event.parameters:,} parameters, {event.device}, {event.precision}, "
                f"{event.steps:,} steps{origin}"
            ]
        case events.ProgressEvent():
            grad = f" grad {event.grad_norm:.2f}" if event.grad_norm is not None else ""
            left = event.remaining_seconds
            remaining = f" {duration(left)} left" if left is not None else ""
            return [
                f"{name}step {event.step:,}/{event.steps:,} loss {event.loss:.3f} "
                f"lr {event.lr:.1e} {event.tokens_per_second:,.0f} tokens/s{grad}{remaining}"
            ]
        case events.ValidatedEvent():
            best = score_text(event.monitor, event.best).removeprefix(f"{event.monitor} ")
            best = f" (best {best})" if event.best != event.value else ""
            loss = event.monitor == "loss"
            monitored = "" if loss else f" {score_text(event.monitor, event.value)}"
            return [
                f"{name}step {event.step:,} validation loss {event.loss:.3f} "
                f"perplexity {event.perplexity:.2f}{monitored}{best}"
            ]
        case events.FinishedEvent():
            return [
                f"{name}done at step {event.step:,} after {duration(event.seconds)} "
                f"({one_line(event.reason)})"
            ]
        case events.SkippedEvent():
            return [f"{name}skipped: {one_line(event.reason)}"]
    return []
