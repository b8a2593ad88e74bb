"""How events of training reach a person or a program: live, as lines, as JSON, or not at all."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from attnkit.cli import console, streams
from attnkit.show import training_board
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

    def notice(self, signal: str) -> None:
        """Tell that a signal was heard; called by its handler, in the middle of anything."""
        ...


class LineDisplay:
    """Passes every event to a function that prints it."""

    def __init__(self, show: Callable[[events.Event], None]) -> None:
        self.show = show

    def __enter__(self) -> "LineDisplay":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to put back."""

    def notice(self, signal: str) -> None:
        """Past Python's buffers, which the handler may have interrupted."""
        with suppress(OSError):
            os.write(2, f"{heard(signal)}\n".encode())


def heard(signal: str) -> str:
    """What the first signal makes happen."""
    again = "; Ctrl-C again leaves at once" if signal == "SIGINT" else ""
    return f"{signal}: stopping as soon as the state is saved{again}"


def plain(event: events.Event) -> None:
    """Log lines on standard error."""
    for line in training_board.plain(event):
        console.say(line)


def as_json(event: events.Event) -> None:
    """One JSON object on a line of standard output, at once."""
    console.write(json.dumps(event.json(), allow_nan=False) + "\n")


def nothing(event: events.Event) -> None:
    """Quiet."""


class Live:
    """A board on standard error that is redrawn in place; its last state stays on the screen."""

    def __init__(self, board: training_board.Board) -> None:
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
        lasting = isinstance(event, events.NoteEvent) and not event.passing
        if lasting or isinstance(event, events.PreparedEvent | events.SkippedEvent):
            for line in training_board.plain(event):
                self._screen.print(Text(line, "dim"))

    def notice(self, signal: str) -> None:
        """The next refresh shows it; the board is replaced in one step."""
        self._board = dataclasses.replace(self._board, message=heard(signal))

    def _draw(self) -> training_board.Drawing:
        size = self._screen.size
        return training_board.Drawing(
            training_board.draw(
                self._board,
                width=size.width,
                # The last picture may be longer than the screen: it is not redrawn.
                height=1_000_000 if self._over else size.height - 1,
                ascii=self._screen.glyphs_ascii,
                now=time.monotonic(),
            )
        )


def choose(board: training_board.Board, *, as_lines_of_json: bool, quiet: bool) -> Display:
    """The display that fits the streams and the options."""
    if as_lines_of_json:
        return LineDisplay(as_json)
    if quiet:
        return LineDisplay(nothing)
    return Live(board) if streams.terminal(sys.stderr) else LineDisplay(plain)
