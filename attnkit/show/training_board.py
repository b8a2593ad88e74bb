"""Progress of trainings: a live display of all runs, and log lines of events."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from attnkit.show.quantities import duration
from attnkit.text import one_line
from attnkit.train import events

State = Literal["waiting", "training", "done", "stopped", "failed"]
STYLES: dict[State, str] = {
    "waiting": "dim",
    "training": "cyan",
    "done": "green",
    "stopped": "yellow",
    "failed": "red",
}
BAR_WIDTH = 16  # width of a progress bar, in characters
MIN_NAME = 14  # minimum width of a name, in characters
NARROW = 60  # width of a screen, in characters, below which the end of a run is shown by its state only


@dataclass
class BoardRun:
    """State of the training of a variant with one seed."""

    variant: str
    seed: int
    state: State = "waiting"
    seconds: float | None = None
    validation: str = ""  # last validation score, such as "validation BLEU 38.2"
    result: str = ""  # description of the end
    activity: str = ""  # current activity
    progress: events.ProgressEvent | None = None


class Board:
    """A rich renderable of all runs, active runs first; updated by events."""

    def __init__(self, recipe: str, runs: tuple[BoardRun, ...], jobs: int = 1, busy: Callable[[], str] = str) -> None:
        self.recipe, self.runs, self.jobs = recipe, runs, jobs
        self.busy = busy  # returns the other load of the machine, which makes the remaining time uncertain, or ""
        self.message = ""
        self.activity = "preparing data"  # while no run is active
        self.spinner = Spinner("line", style="cyan")

    def update(self, event: events.Event) -> None:
        """Update the board by an event."""
        key = (event.variant, event.seed)
        run = next((run for run in self.runs if (run.variant, run.seed) == key), None)
        match event:
            case events.NoteEvent(passing=False):
                self.message = event.text
                return
            case events.ScoredEvent():
                self.activity = self.message = ""
                return
            case events.NoteEvent():
                (run or self).activity = event.text
            case events.PreparedEvent():
                (run or self).activity = "building the model" if self.runs else ""
        if run is None:
            return
        match event:
            case events.NoteEvent():
                run.progress = None
            case events.StartedEvent():
                run.state, run.activity, self.message = "training", _description(event), ""
            case events.ProgressEvent():
                run.state, run.activity, run.progress = "training", _description(event), event
            case events.ValidatedEvent():
                run.validation = events.score_text(event.monitor, event.value)
            case events.FinishedEvent():
                run.seconds = event.seconds
                self._end(run, "done", _description(event))
            case events.SkippedEvent():
                self._end(run, "done", _description(event))
            case events.FailedEvent():
                self._end(run, "failed", _description(event))
            case events.EvaluatedEvent():
                self._end(run, run.state, run.result)

    def interrupt(self) -> None:
        """Mark all runs in training as stopped."""
        for run in self.runs:
            state: State = "stopped" if run.state == "training" else run.state
            self._end(run, state, run.result)
        self.activity = ""

    def _end(self, run: BoardRun, state: State, result: str) -> None:
        run.state, run.result, run.activity, run.progress = state, result, "", None
        waiting = self._count("waiting", "training")
        self.activity, self.message = "preparing the next run" if waiting else "scoring", ""

    def _count(self, *states: State) -> int:
        return sum(run.state in states for run in self.runs)

    def _named(self, run: BoardRun) -> str:
        """Return the variant of a run, with its seed if there are several seeds."""
        seeds = len({run.seed for run in self.runs}) > 1
        return one_line(run.variant) + (f" seed {run.seed}" if seeds else "")

    def remaining_seconds(self) -> float | None:
        """Return the estimated time until the last run ends; waiting runs are assumed to take the mean time."""
        active = [
            (run.progress.remaining_seconds, run.progress)
            for run in self.runs
            if run.progress and run.progress.remaining_seconds is not None
        ]
        if not active:
            return None
        durations = [run.seconds for run in self.runs if run.seconds]
        durations = durations or [remaining * p.steps / max(1, p.steps - p.step) for remaining, p in active]
        ends = [remaining for remaining, _ in active]
        waiting = self._count("waiting") * mean(durations)
        return max(*ends, (sum(ends) + waiting) / self.jobs)

    def _title(self) -> str:
        parts = []
        if self.runs:  # there are none if only data is prepared
            parts.append(f"{self._count('done')} of {len(self.runs)} done")
        if failed := self._count("failed"):
            parts.append(f"{failed} failed")
        left = self.remaining_seconds()
        if left is not None and len(self.runs) > 1:
            parts.append(f"about {duration(left)} left")
        if left is not None and (busy := self.busy()):
            parts.append(busy)
        return ": ".join(filter(None, (one_line(self.recipe), ", ".join(parts))))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self._title(), "bold", no_wrap=True, overflow="crop")
        active = [(f"{self._named(run)}: {one_line(run.activity)}", run.progress) for run in self.runs if run.activity]
        if not active and self.activity:
            active = [(one_line(self.activity), None)]
        for activity, progress in active:
            line = Table.grid(padding=(0, 1))
            if progress:
                line.add_column(width=BAR_WIDTH)
            bar = ProgressBar(progress.steps, progress.step) if progress else self.spinner
            line.add_row(bar, Text(activity, "cyan", overflow="fold"))
            yield line
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, overflow="crop", min_width=MIN_NAME)
        table.add_column(no_wrap=True, overflow="crop")
        table.add_column()  # shrinks first
        for run in self.runs:
            validation, result = run.validation, one_line(run.result) or run.state
            if options.max_width < NARROW:
                validation, result = validation.removeprefix("validation "), run.state
            result_text = Text(result, STYLES[run.state], no_wrap=True, overflow="crop")
            table.add_row(Text(self._named(run)), Text(validation), result_text)
        yield table
        if self.message:
            yield Text(one_line(self.message), "dim", no_wrap=True, overflow="crop")


def log_lines(event: events.Event) -> list[str]:
    """Return the log lines of an event; none for some events."""
    seed = "" if event.seed is None else f" seed {event.seed}"
    name = f"{one_line(event.variant)}{seed}: " if event.variant is not None else ""
    match event:
        case events.NoteEvent():
            return [name + one_line(line) for line in event.text.split("\n")]
        case events.PreparedEvent():
            return [one_line(line) for line in event.reports]
    description = _description(event)
    return [name + description] if description else []


def _description(event: events.Event) -> str:
    """Return the description of an event on one line; empty for events that are not logged."""
    match event:
        case events.StartedEvent():
            resumed = event.resumed_from
            warmup = f", warming up for {event.warmup:,}" if event.warmup > 1 else ""
            if event.warmup > event.steps:
                warmup += " (longer than the training)"
            origin = f", resumed from step {resumed:,}" if resumed is not None else ""
            return (
                f"{event.parameters:,} parameters, {event.device}, {event.precision}, "
                f"{event.steps:,} steps{warmup}{origin}"
            )
        case events.ProgressEvent():
            norm, left = event.grad_norm, event.remaining_seconds
            gradient = f", gradient norm {norm:.2f}" if norm is not None else ""
            remaining = f", {duration(left)} left" if left is not None else ""
            return (
                f"step {event.step:,}/{event.steps:,}: {event.loss_name} {event.loss:.3f}, "
                f"learning rate {event.lr:.1e}, {event.tokens_per_second:,.0f} tokens/s"
                f"{gradient}{remaining}"
            )
        case events.ValidatedEvent():
            best = events.score_text(event.monitor, event.best).rpartition(" ")[-1]
            best = f" (best {best})" if event.best != event.value else ""
            loss = event.monitor == "loss"
            monitored = "" if loss else f", {events.score_text(event.monitor, event.value)}"
            return (
                f"step {event.step:,}: {events.score_text('loss', event.loss)}, "
                f"perplexity {event.perplexity:.2f}{monitored}{best}"
            )
        case events.FinishedEvent():
            took = duration(event.seconds)
            return f"done at step {event.step:,} after {took} ({one_line(event.reason)})"
        case events.SkippedEvent():
            return f"skipped: {one_line(event.reason)}"
        case events.FailedEvent():
            return f"failed: {one_line(event.reason)}"
        case events.EvaluatedEvent():
            return f"scored {', '.join(map(one_line, event.splits))}"
    return ""
