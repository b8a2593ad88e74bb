"""How the events of training are shown: live, as lines, as JSON, or not at all."""

import json
import os
import sys
from contextlib import AbstractContextManager, suppress

from attnkit.cli import console, streams
from attnkit.show.training_board import Board, log_lines
from attnkit.train import events

REFRESHES = 4  # a second; each costs about a millisecond


class Display(AbstractContextManager["Display", None]):
    """A context in which events are shown; this one shows nothing."""

    def __exit__(self, *raised: object) -> None:
        """Nothing to put back."""

    def show(self, event: events.Event) -> None:
        """Show one event."""

    def notice(self, signal: str) -> None:
        """Report a signal; called by its handler, which may have interrupted Python's buffers."""
        with suppress(OSError):
            os.write(2, f"{signal_text(signal)}\n".encode())


class LogDisplay(Display):
    """Log lines on standard error."""

    def show(self, event: events.Event) -> None:
        for line in log_lines(event):
            console.say(line)


class JsonDisplay(Display):
    """One JSON object on a line of standard output, at once."""

    def show(self, event: events.Event) -> None:
        console.write(json.dumps(event.json(), allow_nan=False) + "\n")


class LiveDisplay(Display):
    """A board on standard error that is redrawn in place; its last state stays on the screen."""

    def __init__(self, board: Board) -> None:
        from rich.live import Live

        self._board = board
        self._screen = console.stderr()
        self._live = Live(
            board, console=self._screen, refresh_per_second=REFRESHES, redirect_stdout=False
        )

    def __enter__(self) -> "LiveDisplay":
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if raised[0] is not None:
            self._board.interrupt()
        self._board.whole = True
        self._live.stop()
        console.say("")

    def show(self, event: events.Event) -> None:
        """Update the board; what a user should be able to read later goes above it for good."""
        from rich.text import Text

        self._board.update(event)
        lasting = isinstance(event, events.NoteEvent) and not event.passing
        failed = isinstance(event, events.FailedEvent)
        if lasting or failed or isinstance(event, events.PreparedEvent | events.SkippedEvent):
            for line in log_lines(event):
                self._screen.print(Text(line, "red" if failed else "dim"))

    def notice(self, signal: str) -> None:
        """The next refresh shows it."""
        self._board.message = signal_text(signal)


def signal_text(signal: str) -> str:
    """What the first signal makes happen."""
    again = "; Ctrl-C again leaves at once" if signal == "SIGINT" else ""
    return f"{signal}: stopping as soon as the state is saved{again}"


def choose(board: Board, *, as_lines_of_json: bool, quiet: bool) -> Display:
    """The display that fits the streams and the options."""
    if as_lines_of_json:
        return JsonDisplay()
    if quiet:
        return Display()
    return LiveDisplay(board) if streams.terminal(sys.stderr) else LogDisplay()
