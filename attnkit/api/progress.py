"""Progress of training in notebooks and scripts, and renderables as plain text."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live

from attnkit.experiment.settings import TrainingSettings
from attnkit.show.training_board import Board, BoardRun, log_lines
from attnkit.train.events import Event


@contextmanager
def show_progress(settings: TrainingSettings, progress: bool) -> Iterator[Callable[[Event], None]]:
    """Yield a handler of events, which updates a live board in a notebook or terminal and otherwise prints lines."""
    console = Console()  # detects notebooks
    if not progress:
        yield lambda event: None
    elif console.is_jupyter or sys.stderr.isatty():
        board = Board(settings.file.name, tuple(BoardRun(*key) for key in settings.runs()))
        with Live(board, console=console if console.is_jupyter else Console(stderr=True)):
            yield board.update
    else:
        log = Console(file=sys.stderr, soft_wrap=True, markup=False, highlight=False)

        def write(event: Event) -> None:
            for line in log_lines(event):
                log.print(line)

        yield write


def plain_text(*parts: RenderableType) -> str:
    """Render as a terminal without colors would."""
    console = Console(width=100, no_color=True)
    with console.capture() as capture:
        console.print(*parts, sep="\n")
    return capture.get().rstrip()
