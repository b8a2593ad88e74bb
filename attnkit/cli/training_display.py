"""How the events of training are shown: live, as lines, as JSON, or not at all."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from attnkit.cli import console, output, streams
from attnkit.errors import (
    AttnkitError,
    MemoryLimitError,
    StoppedError,
    memory_advice,
    out_of_memory,
)
from attnkit.show.training_board import Board, log_lines
from attnkit.train import events

if TYPE_CHECKING:
    from attnkit.recipe.schema import Recipe, TrainConfig

Notice = Callable[[str], object]
"""Called with the name of the first signal."""

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
        _print_first_look(event)


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
        self._live.stop()
        console.say("")

    def show(self, event: events.Event) -> None:
        """Update the board; what a user should be able to read later goes above it for good."""
        from rich.text import Text

        self._board.update(event)
        lasting = isinstance(event, events.NoteEvent) and not event.passing
        failed = isinstance(event, events.FailedEvent)
        kept = events.PreparedEvent | events.SkippedEvent | events.TunedEvent
        if lasting or failed or isinstance(event, kept):
            for line in log_lines(event):
                self._screen.print(Text(line, "red" if failed else "dim"))
        _print_first_look(event)

    def notice(self, signal: str) -> None:
        """The next refresh shows it."""
        self._board.message = signal_text(signal)


def signal_text(signal: str) -> str:
    """What the first signal makes happen."""
    again = "; Ctrl-C again leaves at once" if signal == "SIGINT" else ""
    return f"{signal}: stopping{again}"


def choose(board: Board, *, as_lines_of_json: bool, quiet: bool) -> Display:
    """The display that fits the streams and the options."""
    if as_lines_of_json:
        return JsonDisplay()
    if quiet:
        return Display()
    return LiveDisplay(board) if streams.terminal(sys.stderr) else LogDisplay()


def follow(
    board: Board,
    start: Callable[..., object],
    spec: "TrainConfig",
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run trainings, show what happens, and print the comparison in the end.

    `start(emit, notice=...)` carries them out, importing what is slow; `spec` is what advice on
    memory refers to.

    Raises:
        MemoryLimitError: it was exceeded.
        StoppedError: a signal came; says how to go on.
        AttnkitError: whatever the trainings raise; what was scored before is printed.
    """
    from attnkit.train.signals import StopSignals

    scored: list[events.ScoredEvent] = []
    screen = choose(board, as_lines_of_json=as_json, quiet=quiet)
    failed: list[str] = []

    def emit(event: events.Event) -> None:
        screen.show(event)
        if isinstance(event, events.ScoredEvent) and not event.unfinished:
            scored.append(event)
        elif isinstance(event, events.FailedEvent) and not quiet:
            failed.append(f"{event.variant} seed {event.seed}")

    try:
        with StopSignals(screen.notice) as stop, screen:
            import attnkit.experiment.training  # noqa: F401  (slow; signals are recorded)

            if stop.requested:
                raise StoppedError(f"stopped by {stop.requested} before training; run this again")
            start(emit, notice=screen.notice)
    except (MemoryError, RuntimeError) as error:
        if out_of_memory(error):
            advice = memory_advice(spec.batch_tokens, spec.accumulate)
            raise MemoryLimitError(f"out of memory: {advice}") from error
        raise
    except StoppedError as error:
        fresh = "--fresh" in console.words()
        old = " (runs that it had not begun keep their old weights)" if fresh else ""
        again = console.again(without=["--fresh"])
        raise StoppedError(f"{error}{old}: {again}") from None
    except AttnkitError as error:
        if failed and all(name in str(error) for name in failed):  # shown with their reasons
            count = f"{len(failed)} of {len(board.runs)} runs failed"
            raise type(error)(f"{count}, for the reasons above: {', '.join(failed)}") from None
        raise
    finally:  # what was trained is compared although others failed
        if scored and not as_json:
            _print_tables(scored[-1], quiet)


def _print_first_look(event: events.Event) -> None:
    """A table of the first runs, without its notes, on standard error while others are trained."""
    if isinstance(event, events.ScoredEvent) and event.unfinished:
        from attnkit.show.axis_tables import tables

        note = f"so far; unfinished runs: {event.unfinished}"
        console.stderr().print(replace(tables(event.comparison)[0], notes=(note,)))


def _print_tables(scored: events.ScoredEvent, quiet: bool) -> None:
    """The comparison, after warnings about it."""
    from attnkit.show.axis_tables import tables
    from attnkit.show.comparison_tables import warning_lines

    result = scored.comparison
    for text in warning_lines(result) if not quiet else ():
        console.warn(text)
    how = "attnkit eval --columns NAME,... shows them"
    output.write_tables([replace(table, how=how) for table in tables(result)], "table")


def use_command(recipe: "Recipe", folder: str) -> str:
    """The command that uses a trained model, for a shell."""
    if recipe.task == "question-answering":
        return contexts_command(folder)
    if not recipe.writes:  # it writes no text
        text = "TEXT" if recipe.task == "tagging" else "a sentence"  # made-up sequences are none
        return shlex.join(["attnkit", "visualize-attn", folder, text, *_plugins()])
    return f"{shlex.join(['attnkit', 'generate', folder, *_plugins()])} < input.txt"


def contexts_command(folder: str) -> str:
    """The command that answers questions from contexts, for a shell."""
    files = ["--contexts", "passages.jsonl", "--prompts", "questions.txt"]
    return shlex.join(["attnkit", "nbce", folder, *_plugins(), *files])


def _plugins() -> list[str]:
    """The options of the same plug-ins."""
    from attnkit import mechanisms

    return [word for path in mechanisms.plugged().values() for word in ("--plugin", str(path))]
