"""How far a command is: a bar on a terminal, a line every half minute elsewhere."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from attnkit.cli import console, streams
from attnkit.text import safe_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressBar:
    """A context that is called with what is being done, how much of it, and of how much."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        if streams.terminal(sys.stderr):
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            name = TextColumn("{task.description}", markup=False)
            columns = (name, BarColumn(), MofNCompleteColumn(), TextColumn(self._unit))
            self._bar = Progress(*columns, console=console.stderr(), transient=True)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """`done` of `total` units of `what` (may be empty); from the work itself, as it goes."""
        if self._bar is not None:
            if what not in self._tasks:
                self._tasks = {what: self._bar.add_task(safe_text(what), total=total)}
            self._bar.update(self._tasks[what], completed=done)
        elif done == total or time.monotonic() - self._last > 30:
            self._last = time.monotonic()
            console.say(f"{what}: {done:,} of {total:,} {self._unit}".removeprefix(": "))
