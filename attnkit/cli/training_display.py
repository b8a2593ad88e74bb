"""Display of training events: a live board, lines, JSON, or nothing."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from attnkit.cli import console, output
from attnkit.cli.options import plugin_arguments
from attnkit.errors import AttnkitError, StoppedError, known_error
from attnkit.show.training_board import Board, log_lines
from attnkit.train import events

if TYPE_CHECKING:
    from attnkit.recipe.schema import Recipe, TrainConfig

Notice = Callable[[str], object]
"""Callback with the name of the first signal."""

REFRESHES = 4  # per second; each takes about a millisecond


@contextmanager
def live_board(board: Board) -> Iterator[Callable[[events.Event], None]]:
    """Redraw a board on standard error in place, and yield a callback that shows an event.

    The last state stays on the screen, below the lines of notes, failures, preparation and skipped runs.
    """
    from rich.live import Live
    from rich.text import Text

    def show(event: events.Event) -> None:
        board.update(event)
        is_note = isinstance(event, events.NoteEvent) and not event.passing
        failed = isinstance(event, events.FailedEvent)
        if is_note or failed or isinstance(event, events.PreparedEvent | events.SkippedEvent):
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
    """Run trainings, show their events, and print the comparison of all scored runs, even if a training fails.

    Args:
        start: called as `start(emit, notice=...)` to run the trainings; imports slow modules itself.
        spec: training settings that advice on memory refers to.

    Raises:
        MemoryLimitError: If memory is exhausted.
        StoppedError: If a signal arrives; the message has the command that resumes.
        AttnkitError: As the trainings.
    """
    from attnkit.train.signals import StopSignals

    live = None if as_json or quiet or not console.is_terminal(sys.stderr) else live_board(board)
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
        """Report a signal; os.write, since the signal handler may have interrupted a write to a buffered stream."""
        message = f"{signal}: stopping" + ("; Ctrl-C again exits at once" if signal == "SIGINT" else "")
        if live is not None:
            board.message = message  # the next refresh shows it
        else:
            with suppress(OSError):
                os.write(2, f"{message}\n".encode())

    try:
        with StopSignals(notice) as stop, live or nullcontext(say_lines) as show:
            import attnkit.experiment.training  # noqa: F401  (slow; signals are already recorded)

            if stop.requested:
                raise StoppedError(f"stopped by {stop.requested} before training; run the same command again")
            start(emit, notice=notice)
    except Exception as error:
        known = known_error(error, spec.batch_tokens, spec.accumulate)
        if known is None:
            raise
        raise _with_advice(known, failed, len(board.runs)) from None
    finally:
        if scored and not as_json:
            _print_tables(scored[-1], quiet)


def _with_advice(error: AttnkitError, failed: Sequence[str], runs: int) -> AttnkitError:
    """Return an error of trainings with the command that resumes, or without reasons that were already printed."""
    if isinstance(error, StoppedError):
        note = " (runs that were not started keep their old weights)" if "--fresh" in console.arguments() else ""
        return StoppedError(f"{error}{note}: {console.command_line(without=['--fresh'])}")
    if failed and all(name in str(error) for name in failed):  # the board or the lines show the reasons
        count = f"{len(failed)} of {runs} runs failed"
        return type(error)(f"{count}, for the reasons above: {', '.join(failed)}")
    return error


def _print_tables(scored: events.ScoredEvent, quiet: bool) -> None:
    from attnkit.show.comparison_tables import tables, warning_lines

    result = scored.comparison
    for text in warning_lines(result) if not quiet else ():
        console.warn(text)
    hint = "attnkit eval --columns NAME,... shows them"
    output.write_tables([replace(table, hint=hint) for table in tables(result)], "table")


def use_command(recipe: "Recipe", folder: str) -> str:
    """Return a shell command that uses a trained model."""
    if recipe.task == "question-answering":
        return contexts_command(folder)
    if not recipe.writes:
        text = "TEXT" if recipe.task == "tagging" else "a sentence"  # synthetic sequences are not sentences
        return command("visualize-attn", folder, text)
    return f"{command('generate', folder)} < input.txt"


def contexts_command(folder: str) -> str:
    """Return a shell command that answers questions from contexts."""
    return command("nbce", folder, "--contexts", "passages.jsonl", "--prompts", "questions.txt")


def command(*words: str) -> str:
    """Return a shell command of attnkit, with --plugin for the loaded plug-ins."""
    return shlex.join(["attnkit", *words, *plugin_arguments()])
