"""How events of training reach a person or a program: live, as lines, as JSON, or not at all."""

import json
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from attnkit.cli import console
from attnkit.show import progress
from attnkit.train import events

REFRESHES = 4  # a second; each costs about a millisecond


class Display(Protocol):
    """A context in which events are shown."""

    def __enter__(self) -> "Display": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def show(self, event: events.Event) -> None:
        """Show one event."""
        ...


class Lines:
    """Passes every event to a function that prints it."""

    def __init__(self, show: Callable[[events.Event], None]) -> None:
        self.show = show

    def __enter__(self) -> "Lines":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to put back."""


def plain(event: events.Event) -> None:
    """Log lines on standard error."""
    for line in progress.plain(event):
        console.say(line)


def as_json(event: events.Event) -> None:
    """One JSON object on a line of standard output, at once."""
    console.write(json.dumps(event.json(), allow_nan=False) + "\n")


def nothing(event: events.Event) -> None:
    """Quiet."""


class Live:
    """A board on standard error that is redrawn in place; its last state stays on the screen."""

    def __init__(self, board: progress.Board) -> None:
        from rich.live import Live as RichLive

        self._board = board
        self._screen = console.stderr()
        self._over = False
        self._live = RichLive(
            console=self._screen,
            get_renderable=self._draw,
            refresh_per_second=REFRESHES,
            redirect_stdout=False,
        )

    def __enter__(self) -> "Live":
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._board = self._board.stopped()
        self._over = True
        self._live.stop()
        console.say("")

    def show(self, event: events.Event) -> None:
        """Fold the event into the board; what a user should know later goes above it for good."""
        from rich.text import Text

        # The drawing thread sees the old board or the new one, never half of one.
        self._board = self._board.after(event, time.monotonic())
        if isinstance(event, events.Note | events.Prepared | events.Skipped):
            for line in progress.plain(event):
                self._screen.print(Text(line, "dim"))

    def _draw(self) -> "progress.Drawing":
        size = self._screen.size
        return progress.Drawing(
            progress.draw(
                self._board,
                width=size.width,
                # The last picture may be longer than the screen: it is not redrawn.
                height=1_000_000 if self._over else size.height - 1,
                ascii=self._screen.glyphs_ascii,
                now=time.monotonic(),
            )
        )


def choose(board: progress.Board, *, as_lines_of_json: bool, quiet: bool) -> Display:
    """The display that fits the streams and the options."""
    import sys

    if as_lines_of_json:
        return Lines(as_json)
    if quiet:
        return Lines(nothing)
    return Live(board) if console.terminal(sys.stderr) else Lines(plain)
