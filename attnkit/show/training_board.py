"""Training on a screen: a live display of all runs, and one line an event for logs."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, OverflowMethod, RenderResult
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
WIDE = 80  # cells from which steps and duration of finished runs are shown
NARROW = 60  # cells below which a validation is not called one
LONGEST_BAR, SHORTEST_BAR = 60, 8
CUT: tuple[OverflowMethod, OverflowMethod] = ("ellipsis", "crop")  # the second in ASCII
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

    def remaining(self, now: float) -> float | None:
        """Seconds until it ends, counted down since it was last reported."""
        progress = self.progress
        if progress is None or progress.remaining_seconds is None:
            return None
        return max(0.0, progress.remaining_seconds - (now - self.progress_at))

    def numbers(self, now: float) -> list[str]:
        """Share and number of steps, time left, loss, speed, learning rate, gradient norm."""
        if (told := self.progress) is None:
            return []
        left = self.remaining(now)
        warming = self.started is not None and told.step < self.started.warmup
        norm = told.grad_norm
        return [
            f"{told.step / max(1, told.steps):.0%}",
            f"{told.step:,}/{told.steps:,}",
            "" if left is None else f"{duration(left)} left",
            f"{told.loss_name} {told.loss:.3f}",
            f"{told.tokens_per_second:,.0f} tokens/s",
            f"learning rate {told.lr:.1e}" + (" (warming up)" if warming else ""),
            *([] if norm is None else [f"gradient norm {norm:.2f}"]),
        ]


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
                self._tell(run, event.text)
            case events.PreparedEvent():
                self._enter(run or self, "building the model" if self.runs else "")
            case events.ScoredEvent():
                self._idle("")
            case events.StartedEvent() if run is not None:
                resumed = event.resumed_from
                run.state, run.step, run.started = "training", resumed or 0, event
                run.progress, run.phase, run.since = None, "", self.clock()
                self._tell(run, "" if resumed is None else f"resumed from step {resumed:,}")
            case events.ProgressEvent() if run is not None:
                run.state, run.step = "training", event.step
                run.progress, run.progress_at = event, self.clock()
            case events.ValidatedEvent() if run is not None:
                run.validation = score_text(event.monitor, event.value)
            case events.SavedEvent() if run is not None:
                run.step = event.step
                self._tell(run, f"saved step {event.step:,}")
            case events.FinishedEvent() if run is not None:
                run.step, run.seconds = event.step, event.seconds
                self._rest(run, "done")
            case events.SkippedEvent() if run is not None:
                self._rest(run, "skipped")
            case events.FailedEvent() if run is not None:
                self._rest(run, "failed")
            case events.EvaluatedEvent() if run is not None:
                self._rest(run, run.state)

    def interrupt(self) -> None:
        """What was training is stopped, the rest waits."""
        for run in self.runs:
            run.state = "stopped" if run.state == "training" else run.state
            run.progress, run.phase = None, ""
        self.phase = ""

    def _tell(self, run: BoardRun | None, text: str) -> None:
        """Show a message, with the name of its run where several are active."""
        whose = f"{run.variant}{self._seed(run)}: " if text and run and self.jobs > 1 else ""
        self.message = f"{whose}{text}"

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

    def _seed(self, run: BoardRun) -> str:
        """Its seed where there are several."""
        return f" seed {run.seed}" if len({run.seed for run in self.runs}) > 1 else ""

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
        ascii_only, width, now = options.ascii_only, options.max_width, self.clock()
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
        separator = " | " if ascii_only else " · "
        yield from _lines(parts, separator, width, "bold")
        active = [run for run in self.runs if run.active]
        room = console.size.height - OTHER_LINES - max(0, len(active) - 2)
        yield self._runs(room, width, ascii_only)
        if active:
            yield ""
            yield self._active(active, width, ascii_only)
        elif self.phase:
            yield ""
            phase = f" {one_line(self.phase)}  {duration(now - self.since)}"
            yield from _lines([phase], separator, width, "cyan")
        if len(active) == 1 and (numbers := active[0].numbers(now)[3:]):
            numbers[0] = f" {numbers[0]}"
            if started := active[0].started:
                numbers += [f"{started.device} {started.precision}",
                            f"{started.parameters:,} parameters"]  # fmt: skip
            yield from _lines(numbers, separator, width, most=2)
        if self.message:
            yield from _lines([f" {one_line(self.message)}"], separator, width, "dim")

    def _active(self, active: list[BoardRun], width: int, ascii_only: bool) -> Table:
        """A line for each active run: its name where there are several, its bar or what it does,
        and as many numbers as fit."""
        several = len(active) > 1
        third = max(SHORTEST_BAR, width // 3)
        numbers = [run.numbers(self.clock())[: None if several else 3] for run in active]
        phases = ["" if row else self._phase(run) for run, row in zip(active, numbers, strict=True)]
        bar = max(SHORTEST_BAR, min(third, max(map(cell_len, phases))) if several else 0)
        grid = Table.grid(padding=(0, 2, 0, 0))
        names = [self._named(run, third, ascii_only) for run in active]
        used = bar
        if several:
            grid.add_column(no_wrap=True)
            used += 2 + max(name.cell_len for name in names)
        grid.add_column(min_width=bar, max_width=LONGEST_BAR if any(numbers) else None, ratio=1)
        shown = 0
        for column in zip_longest(*numbers, fillvalue=""):
            used += 2 + max(map(len, column))
            if used <= width:
                shown += 1
                grid.add_column(no_wrap=True, justify="right")
        for run, name, row, phase in zip(active, names, numbers, phases, strict=True):
            drawn: ProgressBar | Text = Text(phase, "cyan", no_wrap=True, overflow=CUT[ascii_only])
            if run.progress is not None:
                drawn = ProgressBar(run.progress.steps, run.progress.step)
            grid.add_row(*[name] * several, drawn, *row[:shown])
        return grid

    def _phase(self, run: BoardRun) -> str:
        """What a run does that has no numbers, and for how long."""
        phase, alone = one_line(run.phase or "first steps"), not self._count("training", "waiting")
        whose = f": {one_line(run.variant)} seed {run.seed}" if alone else ""
        return f"{' ' * (self.jobs == 1)}{phase}{whose}  {duration(self.clock() - run.since)}"

    def _named(self, run: BoardRun, width: int, ascii_only: bool) -> Text:
        """Name and seed of a run, of which the name is cut."""
        seed = self._seed(run)
        text = Text(f" {one_line(run.variant)}", no_wrap=True)
        text.truncate(width - len(seed), overflow=CUT[ascii_only])
        return text.append(seed)

    def _runs(self, room: int, width: int, ascii_only: bool) -> Table:
        """A line for each run, or for those around the current one where not all fit."""
        first, last = 0, len(self.runs)
        if last > max(3, room) and not self.whole:
            current = (n for n, run in enumerate(self.runs) if run.active or run.state == "waiting")
            room = max(2, room - 1)
            first = max(0, min(next(current, last) - room // 2, last - room))
            last = first + room
        grid = Table.grid(padding=(0, 2, 0, 0))
        for run in self.runs[first:last]:
            scoring = run.phase and run.state in ("done", "skipped")
            state: State = "scoring" if scoring else run.state
            glyph, ascii_glyph, style = STATES[state]
            name = Text(one_line(run.variant), no_wrap=True, overflow=CUT[ascii_only])
            validation = run.validation.removeprefix("validation " if width < NARROW else "")
            cells = [self._seed(run).strip()] * bool(self._seed(run)) + [f"{state:8}", validation]
            if width >= WIDE:
                finished = run.step and run.state != "training"
                cells.append(f"{run.step:>7,} steps" if finished else "")
                cells.append("" if run.seconds is None else duration(run.seconds))
            mark = Text(f" {ascii_glyph if ascii_only else glyph}", style)
            row_style = style if state not in ("done", "skipped", "stopped") else None
            grid.add_row(mark, name, *map(Text, cells), style=row_style)
        for column in (*grid.columns[:1], *grid.columns[2:]):
            column.no_wrap = True  # the names are what is cut
        if hidden := len(self.runs) - (last - first):
            grid.add_row("", Text(f"and {hidden} more", "dim"))
        return grid


def _lines(
    parts: list[str], separator: str, width: int, style: str = "", most: int = 1
) -> Iterator[Text]:
    """As many parts as fit on so many lines."""
    rest, margin = parts, ""
    while rest and most:
        count = len(rest)
        while count > 1 and cell_len(margin + separator.join(rest[:count])) > width:
            count -= 1
        text = margin + separator.join(rest[:count])
        yield Text(text, style, no_wrap=True, overflow=CUT[separator == " | "])
        rest, most, margin = rest[count:], most - 1, " "


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
