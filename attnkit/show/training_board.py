"""Training on a screen: a live display of all runs, and one line an event for logs."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import zip_longest
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, OverflowMethod, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from attnkit.recipe.metrics import metric_facts
from attnkit.text import safe_text
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
WIDE = 80  # cells from which steps and duration of finished runs are shown
NARROW = 60  # cells below which a validation is not called one
LONGEST_BAR, SHORTEST_BAR = 60, 8
OTHER_LINES = 8  # lines of the display beside those of the runs, at most, and one to spare


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

    @property
    def shown_state(self) -> State:
        return "scoring" if self.phase and self.state in ("done", "skipped") else self.state

    def remaining(self, now: float) -> float | None:
        """Seconds until it ends, counted down since it was last reported."""
        progress = self.progress
        if progress is None or progress.remaining_seconds is None:
            return None
        return max(0.0, progress.remaining_seconds - (now - self.progress_at))

    def rest(self) -> None:
        """Nothing is known of it any more that changes."""
        self.progress, self.phase = None, ""


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
        self._phase = "preparing data"  # while no run is active
        self._since = clock()  # the beginning of the phase

    def update(self, event: events.Event) -> None:
        """Take in what happened."""
        key = (event.variant, event.seed)
        run = next((run for run in self.runs if (run.variant, run.seed) == key), None)
        match event:
            case events.NoteEvent(passing=True) if run is not None:
                self._show_phase(run, event.text)
            case events.NoteEvent(passing=True):
                if _stage(event.text) != _stage(self._phase):
                    self._since = self.clock()
                self._phase = event.text
            case events.NoteEvent():
                self._tell(run, event.text)
            case events.PreparedEvent() if run is not None:
                self._show_phase(run, "building the model")
            case events.PreparedEvent():
                self._idle("building the model" if self.runs else "")
            case events.ScoredEvent():
                self._idle("")
            case _ if run is not None:
                self._update_run(run, event)

    def _update_run(self, run: BoardRun, event: events.Event) -> None:
        match event:
            case events.StartedEvent():
                resumed = event.resumed_from
                run.rest()
                run.state, run.step, run.started = "training", resumed or 0, event
                run.since = self.clock()
                self._tell(run, "" if resumed is None else f"resumed from step {resumed:,}")
            case events.ProgressEvent():
                run.state, run.step = "training", event.step
                run.progress, run.progress_at = event, self.clock()
            case events.ValidatedEvent():
                run.validation = score_text(event.monitor, event.value)
            case events.SavedEvent():
                run.step = event.step
                self._tell(run, f"saved step {event.step:,}")
            case events.FinishedEvent():
                run.state, run.step, run.seconds = "done", event.step, event.seconds
                self._rest(run)
            case events.SkippedEvent():
                run.state = "skipped"
                self._rest(run)
            case events.FailedEvent():
                run.state = "failed"
                self._rest(run)
            case events.EvaluatedEvent():
                self._rest(run)

    def interrupt(self) -> None:
        """What was training is stopped, the rest waits."""
        for run in self.runs:
            run.state = "stopped" if run.state == "training" else run.state
            run.rest()
        self._phase = ""

    def _tell(self, run: BoardRun | None, text: str) -> None:
        """Show a message, with the name of its run where several are active."""
        whose = f"{self._name(run)}: " if text and run is not None and self.jobs > 1 else ""
        self.message = f"{whose}{text}"

    def _rest(self, run: BoardRun) -> None:
        run.rest()
        if not any(other.active for other in self.runs):
            self._idle("preparing the next run")

    def _idle(self, phase: str) -> None:
        self._phase = "scoring" if phase and self._trained == len(self.runs) else phase
        self._since, self.message = self.clock(), ""

    def _show_phase(self, run: BoardRun, text: str) -> None:
        """Show a stage of a run; its clock is not reset while only its numbers change."""
        if _stage(text) != _stage(run.phase):
            run.since = self.clock()
        run.phase, run.progress = text, None

    @property
    def _trained(self) -> int:
        return self._count("done", "skipped")

    def _count(self, *states: State) -> int:
        return sum(run.state in states for run in self.runs)

    def remaining_in_all(self) -> float | None:
        """Seconds until the last run ends, if the waiting ones take as long as the others."""
        now = self.clock()
        known = [(run, left) for run in self.runs if (left := run.remaining(now)) is not None]
        if not known:
            return None
        times = [run.seconds for run in self.runs if run.seconds]
        times = times or [now - run.since + left for run, left in known]
        usual = sum(times) / len(times)
        training = self._count("training")
        ends = [left for _, left in known] + [usual] * (training - len(known))
        ends += [0.0] * (self.jobs - len(ends))
        heapify(ends)
        for _ in range(self._count("waiting")):
            heapreplace(ends, ends[0] + usual)
        return max(ends)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ascii_only, width = options.ascii_only, options.max_width
        parts = [one_line(self.recipe)]
        if self.runs:  # none where only data is prepared
            parts.append(f"{self._trained} of {len(self.runs)} done")
        if failed := self._count("failed"):
            parts.append(f"{failed} failed")
        left = self.remaining_in_all()
        if left is not None and len(self.runs) > 1:
            parts.append(f"about {duration(left)} left")
        if left is not None and (busy := self.busy()):
            parts.append(busy)
        yield _line(parts, width, ascii_only, "bold")
        active = [run for run in self.runs if run.active]
        room = console.size.height - OTHER_LINES - max(0, len(active) - 2)
        yield self._runs(room, width, ascii_only)
        if len(active) > 1:
            yield ""
            yield self._side_by_side(active, width, ascii_only)
        else:
            yield from self._alone(active[0] if active else None, width, ascii_only)
        if self.message:
            yield _line([f" {one_line(self.message)}"], width, ascii_only, "dim")

    def _alone(self, run: BoardRun | None, width: int, ascii_only: bool) -> RenderResult:
        """The progress of the only active run, or what is done while there is none."""
        progress = None if run is None else run.progress
        if run is not None and progress is not None:
            yield ""
            bar = Table.grid(padding=(0, 2, 0, 0))
            bar.add_column(max_width=LONGEST_BAR)
            cells = self._numbers(run, progress)[:2]
            run_left = run.remaining(self.clock())
            cells += [] if run_left is None else [f"{duration(run_left)} left"]
            for _ in cells:
                bar.add_column(no_wrap=True)
            bar.add_row(ProgressBar(progress.steps, progress.step), *cells)
            yield bar
            numbers = self._numbers(run, progress)[2:]
            if run.started is not None:
                numbers.append(f"{run.started.device} {run.started.precision}")
                numbers.append(f"{run.started.parameters:,} parameters")
            yield from _lines(numbers, width, ascii_only)
        elif phase := self._phase if run is None else self._phase_of(run):
            if run is not None and self._trained == len(self.runs):
                phase = f"{phase}: {run.variant} seed {run.seed}"
            yield ""
            seconds = duration(self.clock() - (self._since if run is None else run.since))
            yield _line([f" {one_line(phase)}  {seconds}"], width, ascii_only, "cyan")

    def _side_by_side(self, active: list[BoardRun], width: int, ascii_only: bool) -> Table:
        """A line for each active run: its name, its bar, and as many numbers as fit."""
        now = self.clock()
        names = [f" {self._name(run)}" for run in active]
        phases = [f"{one_line(self._phase_of(run))}  {duration(now - run.since)}" for run in active]
        cells: list[list[str]] = []
        for run in active:
            numbers = [] if run.progress is None else self._numbers(run, run.progress)
            left = run.remaining(now)
            numbers[1:1] = [] if left is None else [f"{duration(left)} left"]
            cells.append(numbers)
        wanted = max((cell_len(phase) for phase, row in zip(phases, cells, strict=True) if not row),
                     default=0)  # fmt: skip
        bar = max(SHORTEST_BAR, min(wanted, width // 3))
        name = min(max(map(cell_len, names)), max(SHORTEST_BAR, width // 3))
        used, columns = name + 2 + bar, 0
        for column in zip_longest(*cells, fillvalue=""):
            used += 2 + max(map(len, column))
            columns += used <= width
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=name, no_wrap=True)
        grid.add_column(min_width=bar, max_width=LONGEST_BAR, ratio=1)
        for _ in range(columns):
            grid.add_column(no_wrap=True, justify="right")
        for run, title, phase, numbers in zip(active, names, phases, cells, strict=True):
            first = _line([title.removesuffix(self._seed(run))], width, ascii_only)
            first.truncate(name - cell_len(self._seed(run)))
            first.append(self._seed(run))
            if run.progress is None:
                grid.add_row(first, _line([phase], width, ascii_only, "cyan"))
            else:
                drawn = ProgressBar(run.progress.steps, run.progress.step)
                grid.add_row(first, drawn, *numbers[:columns])
        return grid

    def _phase_of(self, run: BoardRun) -> str:
        return run.phase or "first steps"

    def _name(self, run: BoardRun) -> str:
        return one_line(run.variant) + self._seed(run)

    def _seed(self, run: BoardRun) -> str:
        """Its seed where there are several."""
        return f" seed {run.seed}" if len({run.seed for run in self.runs}) > 1 else ""

    def _runs(self, room: int, width: int, ascii_only: bool) -> Table:
        """A line for each run, or for those around the current one where not all fit."""
        first, last = 0, len(self.runs)
        if last > max(3, room) and not self.whole:
            unfinished = (at for at, run in enumerate(self.runs) if run.active or
                          run.state == "waiting")  # fmt: skip
            room = max(2, room - 1)
            first = max(0, min(next(unfinished, last) - room // 2, last - room))
            last = first + room
        seeds = len({run.seed for run in self.runs}) > 1
        grid = Table.grid(padding=(0, 2, 0, 0))
        for run in self.runs[first:last]:
            state = run.shown_state
            glyph, ascii_glyph, style = STATES[state]
            name = _line([one_line(run.variant)], width, ascii_only)
            mark = f" {ascii_glyph if ascii_only else glyph}"
            cells = [f"seed {run.seed}"] if seeds else []
            validation = run.validation.removeprefix("validation " if width < NARROW else "")
            cells += [f"{state:8}", validation]
            if width >= WIDE:
                finished = run.step and run.state != "training"
                cells.append(f"{run.step:>7,} steps" if finished else "")
                cells.append("" if run.seconds is None else duration(run.seconds))
            row_style = style if state not in ("done", "skipped", "stopped") else None
            grid.add_row(Text(mark, style), name, *map(Text, cells), style=row_style)
        for column in (*grid.columns[:1], *grid.columns[2:]):
            column.no_wrap = True  # the names are what is cut
        if hidden := len(self.runs) - (last - first):
            grid.add_row("", Text(f"and {hidden} more", "dim"))
        return grid

    def _numbers(self, run: BoardRun, progress: events.ProgressEvent) -> list[str]:
        """Share and number of steps, loss, speed, learning rate, gradient norm."""
        warming = run.started is not None and progress.step < run.started.warmup
        parts = [
            f"{progress.step / max(1, progress.steps):.0%}",
            f"{progress.step:,}/{progress.steps:,}",
            f"{progress.loss_name} {progress.loss:.3f}",
            f"{progress.tokens_per_second:,.0f} tokens/s",
            f"learning rate {progress.lr:.1e}" + (" (warming up)" if warming else ""),
        ]
        if progress.grad_norm is not None:
            parts.append(f"gradient norm {progress.grad_norm:.2f}")
        return parts


def _stage(text: str) -> str:
    """What a passing note is about, without its numbers."""
    return text.split(":")[0]


def _line(parts: list[str], width: int, ascii_only: bool, style: str = "") -> Text:
    """One line of as many parts as fit."""
    separator = _separator(ascii_only)
    while len(parts) > 1 and cell_len(separator.join(parts)) > width:
        parts = parts[:-1]
    overflow: OverflowMethod = "crop" if ascii_only else "ellipsis"
    return Text(separator.join(parts), style, no_wrap=True, overflow=overflow)


def _lines(parts: list[str], width: int, ascii_only: bool) -> Iterator[Text]:
    """As many parts as fit on two lines."""
    rest = [f" {parts[0]}", *parts[1:]]
    for _ in range(2):
        if not rest:
            return
        line = _line(rest, width, ascii_only)
        shown = line.plain.count(_separator(ascii_only)) + 1
        yield line
        rest = [f" {part}" if at == 0 else part for at, part in enumerate(rest[shown:])]


def _separator(ascii_only: bool) -> str:
    return " | " if ascii_only else " · "


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
