"""Progress of a command: a bar on a terminal, otherwise a line every half minute."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from attnkit.cli import console
from attnkit.text import safe_text

if TYPE_CHECKING:
    from rich.progress import TaskID

Progress = Callable[[str, int, int], None]
"""Callback with a task (may be empty), the number of units done, and their total."""
SECONDS = 30  # between lines


def say_loading(model: str) -> None:
    """Print that a model is being loaded, unless it is a run, which opens fast."""
    from attnkit.runs import is_run

    exists_or_hub_name = Path(model).exists() or not model.startswith((".", "/", "~"))
    if exists_or_hub_name and not is_run(model):
        console.say(f"loading {model}")


@contextmanager
def progress_bar(unit: str) -> Iterator[Progress]:
    """Yield a callback that reports progress in units such as "heads"."""
    if not console.is_terminal(sys.stderr):
        last = time.monotonic()

        def print_line(task: str, done: int, total: int) -> None:
            nonlocal last
            if done == total or time.monotonic() - last > SECONDS:
                last = time.monotonic()
                console.say(f"{task}: {done:,} of {total:,} {unit}".removeprefix(": "))

        yield print_line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    bar = Bar(*columns, TextColumn(unit), console=console.stderr(), transient=True)
    tasks: dict[str, TaskID] = {}

    def draw(task: str, done: int, total: int) -> None:
        if task not in tasks:
            tasks[task] = bar.add_task(safe_text(task), total=total)
        bar.update(tasks[task], completed=done, total=total)
        (bar.start if done < total else bar.stop)()  # results are written without a bar

    try:
        yield draw
    finally:
        bar.stop()
