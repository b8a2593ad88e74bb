"""Training on a screen: a live display of all runs, and one line an event for logs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from attnkit.recipe.metrics import metric_facts
from attnkit.text import one_line
from attnkit.train import events

State = Literal["waiting", "training", "scoring", "done", "skipped", "stopped", "failed"]
STATES: dict[State, tuple[str, str, str]] = {
    "waiting": ("·", ".", "dim"),
    "training": ("▶", ">", "bold cyan"),
    "scoring": ("▶", ">", "bold cyan"),
    "done": ("✓", "+", "green"),
    "skipped": ("✓", "+", "green"),
    "stopped": ("■", "x", "yellow"),
    "failed": ("✗", "!", "red"),
}
"""Mark, mark in ASCII, and style."""
NARROW = 60  # cells below which a validation is not called one
BAR = 16  # cells of a bar
LEAST = 14  # of a name
OTHER_LINES = 6  # lines of the display beside those of the runs, and one to spare


@dataclass
class BoardRun:
    """One variant with one seed."""

    variant: str
    seed: int
    state: State = "waiting"
    step: int = 0
    seconds: float | None = None
    validation: str = ""  # the last validation, such as "validation BLEU 38.2"
    phase: str = ""  # what it does while it has no numbers
    since: float = 0.0  # the beginning of the training, or else of the phase
    started: events.StartedEvent | None = None
    progress: events.ProgressEvent | None = None
    progress_at: float = 0.0

    @property
    def active(self) -> bool:
        return self.state == "training" or bool(self.phase)

    def remaining(self, now: float) -> float | None:
        """Seconds until it ends, counted down since it was last reported."""
        if self.progress is None or self.progress.remaining_seconds is None:
            return None
        return max(0.0, self.progress.remaining_seconds - (now - self.progress_at))

    def doing(self, now: float) -> str:
        """What an active run does: its numbers, or its phase and for how long."""
        told, started = self.progress, self.started
        if told is None or started is None:
            return f"{one_line(self.phase or 'first steps')}  {duration(now - self.since)}"
        left, norm = self.remaining(now), told.grad_norm
        warming = " (warming up)" if told.step < started.warmup else ""
        return ", ".join([
            f"{told.step / max(1, told.steps):.0%} of {told.steps:,}",
            *([] if left is None else [f"{duration(left)} left"]),
            f"{told.loss_name} {told.loss:.3f}",
            f"{told.tokens_per_second:,.0f} tokens/s",
            f"learning rate {told.lr:.1e}{warming}",
            *([] if norm is None else [f"gradient norm {norm:.2f}"]),
            f"{started.device} {started.precision}",
            f"{started.parameters:,} parameters",
        ])  # fmt: skip


class Board:
    """A rich renderable of all runs and of those that are training, updated by events."""

    def __init__(
        self,
        recipe: str,
        runs: tuple[BoardRun, ...],
        clock: Callable[[], float] = time.monotonic,
        jobs: int = 1,
        busy: Callable[[], str] = str,
    ) -> None:
        self.recipe, self.runs, self.clock, self.jobs = recipe, runs, clock, jobs
        self.busy = busy  # why the time left may be wrong: what else the machine does, or nothing
        self.whole = False  # draw every run, also those for which the screen has no line
        self.message = ""
        self.phase = "preparing data"  # while no run is active
        self.since = clock()  # the beginning of the phase

    def update(self, event: events.Event) -> None:
        """Take in what happened."""
        key = (event.variant, event.seed)
        run = next((run for run in self.runs if (run.variant, run.seed) == key), None)
        match event:
            case events.NoteEvent(passing=True):
                self._enter(run or self, event.text)
            case events.NoteEvent():
                self.message = event.text
            case events.PreparedEvent():
                self._enter(run or self, "building the model" if self.runs else "")
            case events.ScoredEvent():
                self._idle("")
        if run is None:
            return
        match event:
            case events.StartedEvent():
                run.state, run.step, run.started = "training", event.resumed_from or 0, event
                run.progress, run.phase, run.since = None, "", self.clock()
                self.message = f"resumed from step {run.step:,}" if run.step else ""
            case events.ProgressEvent():
                run.state, run.step = "training", event.step
                run.progress, run.progress_at = event, self.clock()
            case events.ValidatedEvent():
                run.validation = score_text(event.monitor, event.value)
            case events.SavedEvent():
                run.step = event.step
            case events.FinishedEvent():
                run.step, run.seconds = event.step, event.seconds
                self._rest(run, "done")
            case events.SkippedEvent():
                self._rest(run, "skipped")
            case events.FailedEvent():
                self._rest(run, "failed")
            case events.EvaluatedEvent():
                self._rest(run, run.state)

    def interrupt(self) -> None:
        """What was training is stopped, the rest waits."""
        for run in self.runs:
            run.state = "stopped" if run.state == "training" else run.state
            run.progress, run.phase = None, ""
        self.phase = ""

    def _enter(self, of: "BoardRun | Board", phase: str) -> None:
        """Show a stage; its clock is not reset while only its numbers change."""
        if phase.split(":")[0] != of.phase.split(":")[0]:
            of.since = self.clock()
        of.phase = phase
        if isinstance(of, BoardRun):
            of.progress = None

    def _rest(self, run: BoardRun, state: State) -> None:
        run.state, run.progress, run.phase = state, None, ""
        if not any(other.active for other in self.runs):
            self._idle("preparing the next run")

    def _idle(self, phase: str) -> None:
        trained = self._count("done", "skipped") == len(self.runs)
        self.phase = "scoring" if phase and trained else phase
        self.since, self.message = self.clock(), ""

    def _count(self, *states: State) -> int:
        return sum(run.state in states for run in self.runs)

    def _named(self, run: BoardRun) -> str:
        """Its variant, and its seed where there are several."""
        seeds = len({run.seed for run in self.runs}) > 1
        return one_line(run.variant) + (f" seed {run.seed}" if seeds else "")

    def remaining_in_all(self) -> float | None:
        """Seconds until the last run ends, if the waiting ones take as long as the others."""
        now = self.clock()
        known = [(run, left) for run in self.runs if (left := run.remaining(now)) is not None]
        if not known:
            return None
        times = [run.seconds for run in self.runs if run.seconds]
        times = times or [now - run.since + left for run, left in known]
        usual = sum(times) / len(times)
        ends = [left for _, left in known] + [usual] * (self._count("training") - len(known))
        waiting = self._count("waiting") * usual
        return max(*ends, (sum(ends) + waiting) / self.jobs)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ascii_only, now = options.ascii_only, self.clock()

        def line(text: str, style: str = "") -> Text:
            overflow = "crop" if ascii_only else "ellipsis"
            return Text(text, style, no_wrap=True, overflow=overflow)  # type: ignore[arg-type]

        parts = [one_line(self.recipe)]
        if self.runs:  # none where only data is prepared
            parts.append(f"{self._count('done', 'skipped')} of {len(self.runs)} done")
        if failed := self._count("failed"):
            parts.append(f"{failed} failed")
        left = self.remaining_in_all()
        if left is not None and len(self.runs) > 1:
            parts.append(f"about {duration(left)} left")
        if left is not None and (busy := self.busy()):
            parts.append(busy)
        yield line((" | " if ascii_only else " · ").join(parts), "bold")
        active = [run for run in self.runs if run.active]
        shown = self._shown(console.size.height - OTHER_LINES - len(active))
        table = Table.grid(padding=(0, 2, 0, 0))
        for run in shown:
            scoring = run.phase and run.state in ("done", "skipped")
            state: State = "scoring" if scoring else run.state
            glyph, ascii_glyph, style = STATES[state]
            mark = Text(f" {ascii_glyph if ascii_only else glyph}", style)
            done = "" if run.seconds is None else f"{run.step:,} steps, {duration(run.seconds)}"
            cells = [f"{state:8}", run.validation, done]
            if options.max_width < NARROW:
                cells[1:] = [run.validation.removeprefix("validation ")]
            table.add_row(mark, line(self._named(run)), *map(line, cells))
        for column in (*table.columns[:1], *table.columns[2:3]):
            column.no_wrap = True  # names and validations are what is cut
        for column in table.columns[1:2]:
            column.min_width = LEAST
        if hidden := len(self.runs) - len(shown):
            table.add_row("", Text(f"and {hidden} more", "dim"))
        yield table
        for run in active:
            grid = Table.grid(padding=(0, 1))
            if told := run.progress:
                grid.add_column(width=BAR)
            name = f"{self._named(run)}: " if len(active) > 1 or run.state != "training" else ""
            doing = line(name + run.doing(now), "cyan")
            doing.no_wrap = len(active) > 1
            grid.add_row(*([ProgressBar(told.steps, told.step)] if told else []), doing)
            yield grid
        if not active and self.phase:
            yield line(f" {one_line(self.phase)}  {duration(now - self.since)}", "cyan")
        if self.message:
            yield line(f" {one_line(self.message)}", "dim")

    def _shown(self, room: int) -> tuple[BoardRun, ...]:
        """All runs, or those around the current one where not all fit."""
        room, last = max(2, room), len(self.runs)
        if last <= room or self.whole:
            return self.runs
        current = (n for n, run in enumerate(self.runs) if run.active or run.state == "waiting")
        first = max(0, min(next(current, last) - room // 2, last - room))
        return self.runs[first : first + room]


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
    if monitor == "loss":
        return f"validation loss {value:.3f}"
    return f"validation {metric_facts(monitor).title} {value:.1f}"


def log_lines(event: events.Event) -> list[str]:
    """An event as lines of a log; some events are not worth a line."""
    seed = "" if event.seed is None else f" seed {event.seed}"
    name = f"{one_line(event.variant)}{seed}: " if event.variant is not None else ""
    match event:
        case events.NoteEvent():
            return [name + one_line(line) for line in event.text.split("\n")]
        case events.PreparedEvent():
            return [one_line(line) for line in event.reports]
        case events.StartedEvent():
            resumed = event.resumed_from
            warmup = f", warming up for {event.warmup:,}" if event.warmup > 1 else ""
            if event.warmup > event.steps:
                warmup += " (longer than the training)"
            origin = f", resumed from step {resumed:,}" if resumed is not None else ""
            return [
                f"{name}{event.parameters:,} parameters, {event.device}, {event.precision}, "
                f"{event.steps:,} steps{warmup}{origin}"
            ]
        case events.ProgressEvent():
            norm = event.grad_norm
            gradient = f", gradient norm {norm:.2f}" if norm is not None else ""
            left = event.remaining_seconds
            remaining = f", {duration(left)} left" if left is not None else ""
            return [
                f"{name}step {event.step:,}/{event.steps:,}: {event.loss_name} {event.loss:.3f}, "
                f"learning rate {event.lr:.1e}, {event.tokens_per_second:,.0f} tokens/s"
                f"{gradient}{remaining}"
            ]
        case events.ValidatedEvent():
            best = score_text(event.monitor, event.best).rpartition(" ")[-1]
            best = f" (best {best})" if event.best != event.value else ""
            loss = event.monitor == "loss"
            monitored = "" if loss else f", {score_text(event.monitor, event.value)}"
            return [
                f"{name}step {event.step:,}: {score_text('loss', event.loss)}, "
                f"perplexity {event.perplexity:.2f}{monitored}{best}"
            ]
        case events.FinishedEvent():
            return [
                f"{name}done at step {event.step:,} after {duration(event.seconds)} "
                f"({one_line(event.reason)})"
            ]
        case events.SkippedEvent():
            return [f"{name}skipped: {one_line(event.reason)}"]
        case events.FailedEvent():
            return [f"{name}failed: {one_line(event.reason)}"]
        case events.TunedEvent():
            tried = ", ".join(
                f"{one['value']}: "
                + (score_text(event.monitor, one["score"]) if "score" in one else "diverged")
                for one in event.trials
            )
            return [f"{name}chose {event.key}={event.value} ({tried})"]
        case events.EvaluatedEvent():
            return [f"{name}scored {', '.join(map(one_line, event.splits))}"]
    return []
