"""Standard output and standard error, colors, and conversion of exceptions into messages and exit codes.

Results go to standard output and everything else to standard error. Color, width and glyphs are chosen for each
stream separately. No other package of attnkit prints.
"""

import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import typer

from attnkit import __version__
from attnkit.errors import AttnkitError, StoppedError, known_error
from attnkit.text import hint, safe_text

if TYPE_CHECKING:
    from attnkit.cli.printer import Printer

PROGRAM = "attnkit"
COMPLETE = "_ATTNKIT_COMPLETE"
WORDING = {
    "Input should be a valid integer.*": "must be a whole number",
    "Input should be a valid number.*": "must be a number",
    "Input should be greater than or equal to ": "must be >= ",
    "Input should be less than or equal to ": "must be <= ",
    "(Input |Value error, )": "",
}
"""Patterns in the parser's messages about values -> the wording that recipes use."""
OPTION_ADVICE = {
    "--batch-size": "batches are counted in tokens: train.batch_tokens=N, --batch-tokens N",
    "--epochs": "training is counted in updates: train.steps=N",
    "--lr": "recipe keys are words without dashes: train.lr=1e-3",
    "--learning-rate": "recipe keys are words without dashes: train.lr=1e-3",
    "--steps": "recipe keys are words without dashes: train.steps=200",
    "--config": "name the recipe without an option: attnkit train my.yaml",
    "--attention": "recipe keys are words without dashes: model.attention=linear",
    "--save": "results go to standard output: --format csv > FILE",
    "--input": "name the file, or pipe text in",
    "--num-beams": "--beam K",
    "--gpus": "--nproc N",
    "--seeds": "train.seeds=1,2,3 trains each variant three times",
    "--tasks": "name at least one recipe",
}
"""Options of other programs -> what to write in attnkit."""
SIGNAL_MESSAGES = {129: ("hung up",), 130: ("interrupted",), 143: ("terminated",)}
"""Exit codes of commands terminated by SIGHUP, SIGINT and SIGTERM -> lines of the message."""

ParserError: Any = typer.BadParameter.__base__
"""Base class of the parser's errors; the module of typer that defines it differs between versions."""

received_signals: list[int] = []
"""Signals that told this process to exit, in order of arrival."""
_arguments: list[str] = []
_color_allowed = True


def stdout() -> "Printer":
    """Return the rich console for results."""
    return _printer(sys.stdout)


def stderr() -> "Printer":
    """Return the rich console for everything but results."""
    return _printer(sys.stderr)


def _printer(stream: TextIO) -> "Printer":
    from attnkit.cli.printer import Printer

    return Printer(stream, is_terminal(stream), has_color(stream))


def write(text: str) -> None:
    """Write result text (JSON, CSV, output lines) to standard output unchanged, and flush."""
    sys.stdout.write(text)
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a message to standard error, with control characters escaped."""
    _print_error(safe_text(text))


def warn(text: str) -> None:
    """Print a warning to standard error."""
    _print_error(f"{PROGRAM}: {paint('warning:', '33', sys.stderr)} {safe_text(text)}")


def is_terminal(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def has_color(stream: TextIO) -> bool:
    """Return whether to use color: on a terminal, without NO_COLOR and --no-color."""
    return _color_allowed and not os.environ.get("NO_COLOR") and is_terminal(stream)


def command_line(*, without: Sequence[str] = ()) -> str:
    """Return the running command line, quoted for a shell, without the arguments in `without`."""
    return safe_text(shlex.join([PROGRAM, *(word for word in _arguments if word not in without)]))


def arguments() -> list[str]:
    """Return the arguments of the running command line."""
    return list(_arguments)


class Outcome(NamedTuple):
    """Exit code of a command, lines for standard error, and whether to print a traceback."""

    code: int
    lines: tuple[str, ...] = ()
    bug: bool = False


def outcome(error: BaseException) -> Outcome:
    """Return the exit code and the message for any exception that a command can raise."""
    match error:
        case StoppedError():
            return Outcome(error.code, (str(error),))
        case typer.Exit():
            return Outcome(error.exit_code)
        case SystemExit() if error.code not in SIGNAL_MESSAGES and (plugin_error := _plugin_error(error)):
            return Outcome(1, (f"error: {plugin_error}",), True)
        case SystemExit():
            if isinstance(error.code, str):
                return Outcome(1, (f"error: {error.code}",))
            return Outcome(error.code or 0, SIGNAL_MESSAGES.get(error.code or 0, ()))
        case KeyboardInterrupt() | typer.Abort():
            return Outcome(130, SIGNAL_MESSAGES[130])
        case BrokenPipeError():
            return Outcome(141)
        case ParserError():
            return _usage(error)
    if known := known_error(error):
        lines = str(known).split("\n")
        return Outcome(known.code, tuple(f"error: {line}" for line in lines if line))
    bug = f"this is a bug in attnkit {__version__}: please report it"
    return Outcome(1, (f"error: {_plugin_error(error) or bug}",), True)


def _plugin_error(error: BaseException) -> str | None:
    from attnkit import mechanisms  # not at the top: `--help` exits through `outcome` and needs no recipes

    return mechanisms.plugin_error(error)


def run(command: Callable[[], Any], arguments: Sequence[str]) -> int:
    """Run the root command that `command` builds, report any error, and return the exit code."""
    global _arguments, _color_allowed
    words = _arguments = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    _color_allowed = "--no-color" not in words[:end]
    words = [word for word in words[:end] if word != "--no-color"] + words[end:]  # accepted after every command
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: warn(" ".join(str(message).split()))
        try:
            _open_streams()
            root = command()
            if COMPLETE in os.environ:
                root.main(words, prog_name=PROGRAM, complete_var=COMPLETE)
            # root.main() would exit with its own codes on a broken pipe and an end of file
            with root.make_context(PROGRAM, words) as context:
                code = int(root.invoke(context) or 0)  # a command returns None or an exit code
            sys.stdout.flush()
        except BaseException as error:
            code = _report(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # discard the buffered text, so that the interpreter exits silently
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
    return code


def silence() -> None:
    """Discard all output of this process; called on all ranks except 0."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def _report(error: BaseException) -> int:
    """Print an error, report it to rank 0, and return its exit code."""
    from attnkit.distributed import group

    lost = group.lost(error)
    if received_signals and not lost and not isinstance(error, StoppedError):
        # a library that the signal interrupted may have raised an error of its own
        error = SystemExit(128 + received_signals[0])
    error = lost or error
    group.report(error)
    try:
        sys.stdout.flush()
    except OSError as flush_error:
        # the command's own error explains more than that of the flush
        error = flush_error if isinstance(error, typer.Exit) else error
    result = outcome(error)
    if result.bug:
        _print_error(safe_text("".join(traceback.format_exception(error)).rstrip("\n")))
    for line in result.lines:
        text = safe_text(line).replace("\n", "\\n")
        if text.startswith("error: "):
            text = paint("error:", "1;31", sys.stderr) + text.removeprefix("error:")
        _print_error(f"{PROGRAM}: {text}")
    return result.code


def _usage(error: Any) -> Outcome:
    """Return the outcome of a parser error, with a one-line message that names the command whose help to read."""
    text = " ".join(str(error.format_message()).split()).rstrip(".")
    if advice := OPTION_ADVICE.get(getattr(error, "option_name", "")):
        text = f"no such option: {error.option_name}; {advice}"
    if match := re.fullmatch(r"(.*'(.*)') is not one of (.*)", text):
        choices = re.findall(r"[\w-]+", match[3])
        text = f"{match[1]}: {hint(match[2], choices)}"
    for pattern, wording in WORDING.items():
        text = re.sub(f": {pattern}", f": {wording}", text)
    path = error.ctx.command_path if error.ctx else PROGRAM
    see = " See" if text.endswith("?") else "; see"
    return Outcome(2, (f"error: {text[:1].lower()}{text[1:]}{see} `{path} --help`",))


def paint(text: str, style: str, stream: TextIO) -> str:
    """Return the text in an ANSI style if the stream has colors, otherwise unchanged."""
    return f"\x1b[{style}m{text}\x1b[0m" if has_color(stream) else text


def _print_error(line: str) -> None:
    """Print a line to standard error, ignoring errors of a closed stream or a full disk."""
    if demo := sys.modules.get("attnkit.runs.demo"):
        line = demo.named(line)
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        pass


def _open_streams() -> None:
    """Open missing streams, and let streams escape characters that they cannot encode.

    Raises AttnkitError if the caller closed standard output (`>&-`).
    """
    closed = sys.stdout is None
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # occupy the file descriptor, so that no file opened later gets it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif callable(reconfigure := getattr(getattr(sys, name), "reconfigure", None)):
            reconfigure(errors="backslashreplace")
    if closed:
        raise AttnkitError("standard output is closed: redirect it to a file or to /dev/null")
