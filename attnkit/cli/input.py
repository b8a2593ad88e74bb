"""Lines of text from a file, a pipe or a terminal, as they come, and where results go."""

import gzip
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from attnkit.cli import console
from attnkit.data.formats import BOM, LONGEST, OTHER, check_growth
from attnkit.errors import DataError, MissingInputError
from attnkit.runs.layout import refuse_part_of_run
from attnkit.storage.files import GZIP, input_error, remove_leftovers, replacing, writing
from attnkit.text import quoted, safe_text


class InputLines:
    """The lines of a binary stream, by the rules of `attnkit.data.formats`.

    Lines end at LF and nowhere else; a CR before it and a byte order mark at the start are
    removed; gzip is recognised by its first bytes.
    """

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self.stream, self.name = stream, name

    def __iter__(self) -> Iterator[str]:
        """Each line, without its end.

        Raises:
            DataError: malformed UTF-8, a line that is too long, damaged gzip.
            OutputError: reading failed.
        """
        number = size = 0
        try:
            stream: Any = self.stream
            packed = None
            # peek waits for the first bytes, as the first line would
            if isinstance(stream, io.BufferedReader) and stream.peek(2).startswith(GZIP):
                packed = _Counted(stream)
                stream = gzip.GzipFile(fileobj=cast(IO[bytes], packed))
            while raw := stream.readline(LONGEST + 1):
                number += 1
                size += len(raw)
                if packed is not None:
                    check_growth(self.name, size, packed.taken)
                yield self._decode(raw, number)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{self.name}: damaged gzip data ({error})") from error
        except OSError as error:
            raise input_error(error, Path(self.name)) from error

    def _decode(self, raw: bytes, number: int) -> str:
        """One line as text."""
        if len(raw) > LONGEST:
            raise DataError(
                f"{self.name}:{number}: the line is longer than {LONGEST:,} bytes; is this a text "
                "with a sentence a line?"
            )
        text = raw.removesuffix(b"\n").removesuffix(b"\r")
        marked = number == 1 and text.startswith(BOM)
        text = text[len(BOM) :] if marked else text
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            what = next((word for magic, word in OTHER.items() if text.startswith(magic)), None)
            if number == 1 and what is not None:
                raise DataError(f"{self.name}: this is {what}") from error
            byte = error.start + 1 + len(BOM) * marked
            raise DataError(
                f"{self.name}:{number}:{byte}: malformed UTF-8 (byte 0x{text[error.start]:02x}); "
                "convert the text to UTF-8"
            ) from error


class _Counted:
    """A stream, and how many bytes were read from it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.taken = stream, 0

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(size)
        self.taken += len(data)
        return data


@contextmanager
def open_lines(path: str) -> Iterator[InputLines]:
    """The lines of a file, of any readable thing with a path, or of standard input (-).

    Raises MissingInputError: it is not there, or is a folder, or standard input is closed.
    """
    if path == "-":
        if sys.stdin is None:
            raise MissingInputError("standard input is closed; name a file or pipe text in")
        yield InputLines(sys.stdin.buffer, "standard input")
        return
    try:
        stream = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        if " " in path and not os.path.lexists(path):
            text = f"{quoted(path)}: no such file; pipe a text itself in: echo TEXT | attnkit ..."
            raise MissingInputError(text) from error
        raise input_error(error, Path(path)) from error
    except ValueError as error:  # a NUL in the name
        raise MissingInputError(f"{path}: cannot be the name of a file") from error
    with stream:
        yield InputLines(stream, path)


@contextmanager
def destination(path: Path | None) -> Iterator[Callable[[str], object]]:
    """How to write text: to standard output at once, or to a file that appears when all is done.

    Control characters are made visible on a terminal only.

    Raises:
        OutputPathError, OutputError: the file cannot be created or written.
    """
    if path is None:
        watched = sys.stdout.isatty()
        yield lambda text: console.write(safe_text(text) if watched else text)
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
