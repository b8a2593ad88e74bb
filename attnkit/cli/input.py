"""Lines of text from a file, a pipe or a terminal, and the destination of output."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attnkit.cli import console
from attnkit.data.formats import Stream, read_lines
from attnkit.errors import MissingInputError
from attnkit.runs.layout import refuse_part_of_run
from attnkit.storage.files import input_error, remove_leftovers, replacing, writing
from attnkit.text import quoted, safe_text


@contextmanager
def open_lines(path: str) -> Iterator[Iterator[str]]:
    """Yield an iterator over the lines of a file, device or pipe, or of standard input (-), as they arrive.

    Raises MissingInputError if the path is missing or a folder, or standard input is closed.
    """
    if path == "-":
        if sys.stdin is None:
            raise MissingInputError("standard input is closed; name a file or pipe text in")
        yield read_lines(Stream(sys.stdin.buffer, "standard input"), None)
        return
    try:
        stream = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        if " " in path and not os.path.lexists(path):
            text = f"{quoted(path)}: no such file; to pass a text, pipe it: echo TEXT | attnkit ..."
            raise MissingInputError(text) from error
        raise input_error(error, Path(path)) from error
    except ValueError as error:  # a null character in the name
        raise MissingInputError(f"{path}: cannot be the name of a file") from error
    with stream:
        yield read_lines(Stream(stream, path), None)


@contextmanager
def destination(path: Path | None) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes text to standard output, or to a file that is complete before it appears.

    Control characters are escaped on a terminal only.

    Raises OutputPathError or OutputError if the file cannot be created or written.
    """
    if path is None:
        on_terminal = sys.stdout.isatty()
        yield lambda text: console.write(safe_text(text) if on_terminal else text)
        return
    refuse_part_of_run(path)
    if path.exists() and not path.is_file():  # a device, a pipe; a folder fails here
        with writing(path), open(path, "w", 1, encoding="utf-8", newline="") as file:
            yield file.write
    else:
        remove_leftovers(path.parent, of=path.name)
        with replacing(path) as prepared, open(prepared, "x", encoding="utf-8", newline="") as file:
            yield file.write
            file.flush()
            os.fsync(file.fileno())
