"""What training looks like: a board of all runs, drawn from its events as text of a given width.

`Board.after` folds events into a state, `draw` turns a state into lines for a screen that is
redrawn, and `plain` turns one event into one line for a log.  All of them are pure.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnkit.text import safe_text
from attnkit.train import events

State = Literal["waiting", "training", "done", "skipped", "stopped"]

KEPT = 512  # losses kept for the sparkline


class Glyphs(NamedTuple):
    """The characters of the board: marks by state, bar, sparkline from low to high."""

    marks: dict[State, str]
    full: str
    head: str
    rest: str
    levels: str
    dot: str
    more: str


UNICODE = Glyphs(
    {"waiting": "·", "training": "▶", "done": "✓", "skipped": "✓", "stopped": "■"},
    "━", "╸", "─", "▁▂▃▄▅▆▇█", "·", "…",
)  # fmt: skip
ASCII = Glyphs(
    {"waiting": ".", "training": ">", "done": "+", "skipped": "+", "stopped": "x"},
    "=", ">", "-", "_.-~=+*#", "|", "~",
)  # fmt: skip

STYLES: dict[State, str] = {
    "waiting": "dim",
    "training": "bold cyan",
    "done": "green",
    "skipped": "green",
    "stopped": "yellow",
}


@dataclass(frozen=True)
class BoardRun:
    """One variant with one seed."""

    variant: str
    seed: int
    state: State = "waiting"
    step: int = 0
    seconds: float | None = None
    reading: str = ""
    """The last validation, such as "bleu 38.2"."""


@dataclass(frozen=True)
class Board:
    """Everything that the display shows."""

    recipe: str
    jobs: tuple[BoardRun, ...]
    current: int | None = None
    phase: str = "preparing data"
    """What is going on while nothing is training."""
    since: float = 0.0
    """When the current job, or else the phase, began (seconds of a monotonic clock)."""
    started: events.StartedEvent | None = None
    progress: events.ProgressEvent | None = None
    seen: float = 0.0
    """When `progress` came."""
    losses: tuple[float, ...] = field(default=(), repr=False)
    message: str = ""

    def after(self, event: events.Event, now: float) -> "Board":
        """The board once `event` has happened at `now`."""
        match event:
            case events.StartedEvent():
                return self._start(event, now)
            case events.ProgressEvent():
                losses = (*self.losses, event.loss)[-KEPT:]
                board = dataclasses.replace(self, progress=event, losses=losses, seen=now)
                return board._job(event, state="training", step=event.step)
            case events.ValidatedEvent():
                return self._job(event, reading=reading(event.monitor, event.value))
            case events.FinishedEvent():
                board = self._job(event, state="done", step=event.step, seconds=event.seconds)
                return board._idle("preparing the next run", now)
            case events.SkippedEvent():
                return self._job(event, state="skipped")._idle("preparing the next run", now)
            case events.SavedEvent():
                board = dataclasses.replace(self, message=f"saved step {event.step:,}")
                return board._job(event, step=event.step)
            case events.NoteEvent(passing=True):
                return self._pass(event, now)
            case events.NoteEvent():
                return dataclasses.replace(self, message=event.text)
            case events.PreparedEvent():
                return self._idle("building the model", now)
            case events.ScoredEvent():
                return self._idle("", now)
        return self

    def stopped(self) -> "Board":
        """The board after an interruption: what was training is stopped, the rest waits."""
        jobs = tuple(
            dataclasses.replace(job, state="stopped") if job.state == "training" else job
            for job in self.jobs
        )
        return dataclasses.replace(self, jobs=jobs, current=None, phase="")

    def _start(self, event: events.StartedEvent, now: float) -> "Board":
        resumed = event.resumed_from
        board = dataclasses.replace(
            self,
            current=self._index(event),
            started=event,
            progress=None,
            losses=(),
            since=now,
            message="" if resumed is None else f"resumed from step {resumed:,}",
        )
        return board._job(event, state="training", step=event.resumed_from or 0)

    def _idle(self, phase: str, now: float) -> "Board":
        phase = "scoring" if phase and self._complete else phase
        return dataclasses.replace(
            self, current=None, progress=None, phase=phase, since=now, message=""
        )

    def _pass(self, event: events.NoteEvent, now: float) -> "Board":
        """Show a stage; its clock goes on while only its numbers change."""
        text = event.text
        if self._complete and event.variant is not None:
            text = f"{text}: {event.variant} seed {event.seed}"
        since = self.since if text.split(":")[0] == self.phase.split(":")[0] else now
        return dataclasses.replace(self, current=None, progress=None, phase=text, since=since)

    @property
    def _complete(self) -> bool:
        return bool(self.jobs) and all(job.state in ("done", "skipped") for job in self.jobs)

    def _index(self, event: events.Event) -> int | None:
        keys = [(job.variant, job.seed) for job in self.jobs]
        key = (event.variant, event.seed)
        return keys.index(key) if key in keys else None

    def _job(self, event: events.Event, **changes: object) -> "Board":
        index = self._index(event)
        if index is None:
            return self
        jobs = list(self.jobs)
        jobs[index] = dataclasses.replace(jobs[index], **changes)  # type: ignore[arg-type]
        return dataclasses.replace(self, jobs=tuple(jobs))

    def remaining(self, now: float) -> float | None:
        """Seconds until the current job ends, counted down since it was last reported."""
        if self.progress is None or self.progress.remaining_seconds is None:
            return None
        return max(0.0, self.progress.remaining_seconds - (now - self.seen))

    def remaining_in_all(self, now: float) -> float | None:
        """Seconds until the last job ends, if the waiting ones take as long as the others."""
        left = self.remaining(now)
        if left is None:
            return None
        times = [job.seconds for job in self.jobs if job.seconds] or [now - self.since + left]
        waiting = sum(job.state == "waiting" for job in self.jobs)
        return left + waiting * sum(times) / len(times)


def duration(seconds: float) -> str:
    """Seconds as people say them: 9s, 1m12s, 3h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def reading(monitor: str, value: float) -> str:
    """A validation result in words: scores have one decimal, losses three."""
    return f"{monitor} {value:.3f}" if monitor == "loss" else f"{monitor} {value:.1f}"


def sparkline(values: Sequence[float], width: int, levels: str) -> str:
    """The course of values in `width` characters, each the mean of a stretch; NaN is a gap."""
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    cuts = [len(values) * i // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    finite = [mean for mean in means if abs(mean) < float("inf")]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join(
        levels[round((mean - low) * scale)] if abs(mean) < float("inf") else " " for mean in means
    )


def bar(share: float, width: int, glyphs: Glyphs) -> Text:
    """A progress bar of exactly `width` characters."""
    full = int(max(0.0, min(1.0, share)) * width)
    head = glyphs.head if 0 < full < width else ""
    done = glyphs.full * (full - len(head)) + head
    return Text.assemble((done, "cyan"), (glyphs.rest * (width - full), "dim"))


class Drawing(NamedTuple):
    """Lines as one rich renderable, none of them wrapped."""

    lines: list[Text]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines:
            line.no_wrap, line.overflow = True, "crop"
            yield line


def draw(board: Board, *, width: int, height: int, ascii: bool, now: float) -> list[Text]:
    """The board as lines, none wider than `width`, at most `height` of them where that is >= 9."""
    glyphs = ASCII if ascii else UNICODE
    foot = _current(board, width, glyphs, now)
    room = max(3, height - len(foot) - 3)
    return [_title(board, width, glyphs, now), *_jobs(board, width, glyphs, room), *foot]


def _title(board: Board, width: int, glyphs: Glyphs, now: float) -> Text:
    done = sum(job.state in ("done", "skipped") for job in board.jobs)
    left = board.remaining_in_all(now)
    parts = [f"{done} of {len(board.jobs)} done"]
    if left is not None and len(board.jobs) > 1:
        parts.append(f"about {duration(left)} left")
    name = Text(fit(one_line(board.recipe), width, glyphs), "bold")
    return _join([name, *(Text(part, "dim") for part in parts)], width, glyphs)


def _jobs(board: Board, width: int, glyphs: Glyphs, room: int) -> list[Text]:
    """One line a job, the neighbourhood of the current one where not all fit."""
    first, last = _window(board, room)
    shown = board.jobs[first:last]
    seeds = len({job.seed for job in board.jobs}) > 1
    names = [one_line(job.variant) for job in shown]
    widest = min(max(map(cell_len, names), default=0), max(8, width * 2 // 5))
    lines = []
    for name, job in zip(names, shown, strict=True):
        style = STYLES[job.state]
        line = Text.assemble((f" {glyphs.marks[job.state]} ", style))
        quiet = "dim" if job.state == "waiting" else ""
        line.append(
            pad(fit(name, widest, glyphs), widest), style if job.state == "training" else quiet
        )
        cells = [f"seed {job.seed}"] if seeds else []
        cells += [f"{job.state:8}", f"{job.reading:12}" if job.reading else " " * 12]
        if job.step and job.state != "training":
            cells.append(f"{job.step:>7,} steps")
        if job.seconds is not None:
            cells.append(duration(job.seconds))
        for cell in cells:
            if line.cell_len + 2 + len(cell.rstrip()) <= width:
                line.append(f"  {cell}", style if cell.strip() == job.state else quiet)
        line.rstrip()
        lines.append(line)
    hidden = len(board.jobs) - len(shown)
    if hidden:
        lines.append(Text(f"   and {hidden} more", "dim"))
    return lines


def _window(board: Board, room: int) -> tuple[int, int]:
    """Which jobs are shown: all, or as many as fit around the first that is not done."""
    count = len(board.jobs)
    if count <= room:
        return 0, count
    waiting = (i for i, job in enumerate(board.jobs) if job.state in ("waiting", "training"))
    centre = board.current if board.current is not None else next(waiting, count - 1)
    first = max(0, min(centre - (room - 1) // 2, count - (room - 1)))
    return first, first + room - 1


def _current(board: Board, width: int, glyphs: Glyphs, now: float) -> list[Text]:
    """What goes on now: the current job's bar and numbers, or the phase; then the last message."""
    lines = []
    if board.progress is not None and board.current is not None:
        lines += [Text(""), _bar_line(board, width, glyphs, now), _numbers(board, width, glyphs)]
    elif board.phase or board.current is not None:
        text = one_line(board.phase) if board.current is None else "first steps"
        seconds = duration(now - board.since)
        text = fit(f" {text}", width - len(seconds) - 2, glyphs)
        lines += [Text(""), Text.assemble((text, "cyan"), f"  {seconds}")]
    if board.message:
        lines.append(Text(fit(f" {one_line(board.message)}", width, glyphs), "dim"))
    return lines


def _bar_line(board: Board, width: int, glyphs: Glyphs, now: float) -> Text:
    """Bar, percentage, steps and remaining time, as much as fits."""
    progress = board.progress
    assert progress is not None
    share = progress.step / max(1, progress.steps)
    left = board.remaining(now)
    cells = [f"{share:4.0%}", f"{progress.step:,}/{progress.steps:,}"]
    if left is not None:
        cells.append(f"{duration(left)} left")
    while len(cells) > 1 and width - 1 - sum(len(cell) + 2 for cell in cells) < 10:
        cells.pop(1)
    room = max(1, min(60, width - 2 - sum(len(cell) + 2 for cell in cells)))
    return Text.assemble(" ", bar(share, room, glyphs), *(f"  {cell}" for cell in cells))


def _numbers(board: Board, width: int, glyphs: Glyphs) -> Text:
    """Loss with its course, speed, learning rate, gradient norm, and what it runs on."""
    progress, started = board.progress, board.started
    assert progress is not None
    loss = Text.assemble(" loss ", (f"{progress.loss:.3f}", "bold"))
    course = sparkline(board.losses, min(20, width // 4), glyphs.levels)
    if len(board.losses) > 1:
        loss.append(f" {course}", "cyan")
    parts = [
        loss,
        Text(f"{progress.tokens_per_second:,.0f} tokens/s"),
        Text(f"lr {progress.lr:.1e}"),
    ]
    if progress.grad_norm is not None:
        parts.append(Text(f"grad {progress.grad_norm:.2f}"))
    if started is not None:
        parts.append(Text(f"{started.device} {started.precision}", "dim"))
        parts.append(Text(f"{started.parameters:,} parameters", "dim"))
    return _join(parts, width, glyphs)


def _join(parts: Iterable[Text], width: int, glyphs: Glyphs) -> Text:
    """Parts with a separator between them, as many as fit."""
    line = Text()
    for part in parts:
        gap = f" {glyphs.dot} " if line else ""
        if line.cell_len + len(gap) + part.cell_len > width:
            break
        line.append(gap, "dim").append_text(part)
    return line


def one_line(text: str) -> str:
    """Text from anywhere as harmless text on one line."""
    return " ".join(safe_text(text).split())


def fit(text: str, width: int, glyphs: Glyphs) -> str:
    """Text cut to `width` cells, with a mark where something is missing."""
    if cell_len(text) <= width:
        return text
    return (chop_cells(text, max(1, width - 1)) or [""])[0] + glyphs.more if width > 0 else ""


def pad(text: str, width: int) -> str:
    """Text filled with spaces to `width` cells."""
    return text + " " * (width - cell_len(text))


def plain(event: events.Event) -> list[str]:
    """An event as lines of a log, without colour or cursor; some events are not worth a line."""
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
            return [name + _progress_words(event)]
        case events.ValidatedEvent():
            top = reading(event.monitor, event.best).removeprefix(f"{event.monitor} ")
            best = f" (best {top})" if event.best != event.value else ""
            monitored = "" if event.monitor == "loss" else f" {reading(event.monitor, event.value)}"
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


def _progress_words(event: events.ProgressEvent) -> str:
    """One log interval in words."""
    grad = f" grad {event.grad_norm:.2f}" if event.grad_norm is not None else ""
    left = event.remaining_seconds
    remaining = f" {duration(left)} left" if left is not None else ""
    return (
        f"step {event.step:,}/{event.steps:,} loss {event.loss:.3f} lr {event.lr:.1e} "
        f"{event.tokens_per_second:,.0f} tokens/s{grad}{remaining}"
    )
