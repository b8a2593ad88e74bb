"""How the events of training are shown: live, as lines, as JSON, or not at all."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from attnkit.cli import console, output
from attnkit.errors import AttnkitError, StoppedError, known_error
from attnkit.show.training_board import Board, log_lines
from attnkit.train import events

if TYPE_CHECKING:
    from attnkit.recipe.schema import Recipe, TrainConfig

Notice = Callable[[str], object]
"""Called with the name of the first signal."""

REFRESHES = 4  # a second; each costs about a millisecond


@contextmanager
def live_board(board: Board) -> Iterator[Callable[[events.Event], None]]:
    """A board on standard error that is redrawn in place; gives what shows an event.

    Its last state stays on the screen, and above it what a user should be able to read later.
    """
    from rich.live import Live
    from rich.text import Text

    def show(event: events.Event) -> None:
        board.update(event)
        lasting = isinstance(event, events.NoteEvent) and not event.passing
        failed = isinstance(event, events.FailedEvent)
        if lasting or failed or isinstance(event, events.PreparedEvent | events.SkippedEvent):
            for line in log_lines(event):
                screen.print(Text(line, "red" if failed else "dim"))

    screen = console.stderr()
    try:
        with Live(board, console=screen, refresh_per_second=REFRESHES, redirect_stdout=False):
            try:
                yield show
            except BaseException:
                board.interrupt()
                raise
    finally:
        console.say("")


def follow(board: Board, start: Callable[..., object], spec: "TrainConfig", *, as_json: bool, quiet: bool) -> None:
    """Run trainings, show what happens, and print the comparison in the end.

    `start(emit, notice=...)` carries them out, importing what is slow; `spec` is what advice on
    memory refers to.

    Raises:
        MemoryLimitError: it was exceeded.
        StoppedError: a signal came; says how to go on.
        AttnkitError: whatever the trainings raise; what was scored before is printed.
    """
    from attnkit.train.signals import StopSignals

    live = None if as_json or quiet or not console.terminal(sys.stderr) else live_board(board)
    scored: list[events.ScoredEvent] = []
    failed: list[str] = []

    def say_lines(event: events.Event) -> None:
        for line in log_lines(event) if not quiet else ():
            console.say(line)

    def emit(event: events.Event) -> None:
        if as_json:
            console.write(json.dumps(event.json(), allow_nan=False) + "\n")
        else:
            show(event)
        if isinstance(event, events.ScoredEvent):
            scored.append(event)
        elif isinstance(event, events.FailedEvent) and not quiet:
            failed.append(f"{event.variant} seed {event.seed}")

    def notice(signal: str) -> None:
        """Report a signal, from its handler, which may have interrupted Python's buffers."""
        again = "; Ctrl-C again leaves at once" if signal == "SIGINT" else ""
        if live is not None:
            board.message = f"{signal}: stopping{again}"  # the next refresh shows it
        else:
            with suppress(OSError):
                os.write(2, f"{signal}: stopping{again}\n".encode())

    try:
        with StopSignals(notice) as stop, live or nullcontext(say_lines) as show:
            import attnkit.experiment.training  # noqa: F401  (slow; signals are recorded)

            if stop.requested:
                raise StoppedError(f"stopped by {stop.requested} before training; run this again")
            start(emit, notice=notice)
    except Exception as error:
        known = known_error(error, spec.batch_tokens, spec.accumulate)
        if known is None:
            raise
        raise _told(known, failed, len(board.runs)) from None
    finally:  # what was trained is compared although others failed
        if scored and not as_json:
            _print_tables(scored[-1], quiet)


def _told(error: AttnkitError, failed: Sequence[str], runs: int) -> AttnkitError:
    """An error of trainings with the command that goes on, or without what was shown before."""
    if isinstance(error, StoppedError):
        fresh = "--fresh" in console.words()
        old = " (runs that it had not begun keep their old weights)" if fresh else ""
        return StoppedError(f"{error}{old}: {console.again(without=['--fresh'])}")
    if failed and all(name in str(error) for name in failed):  # shown with their reasons
        count = f"{len(failed)} of {runs} runs failed"
        return type(error)(f"{count}, for the reasons above: {', '.join(failed)}")
    return error


def _print_tables(scored: events.ScoredEvent, quiet: bool) -> None:
    """The comparison, after warnings about it."""
    from attnkit.show.comparison_tables import tables, warning_lines

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
        return command("visualize-attn", folder, text)
    return f"{command('generate', folder)} < input.txt"


def contexts_command(folder: str) -> str:
    """The command that answers questions from contexts, for a shell."""
    files = ["--contexts", "passages.jsonl", "--prompts", "questions.txt"]
    return command("nbce", folder, *files)


def command(*words: str) -> str:
    """A command for a shell, with the options of the same plug-ins."""
    from attnkit import mechanisms

    plugins = [word for path in mechanisms.plugged().values() for word in ("--plugin", str(path))]
    return shlex.join(["attnkit", *words, *plugins])
