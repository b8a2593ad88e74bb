"""Streaming readers of text: lines, aligned files and plain text, each also as gzip or xz data.

The rules, the same for every format:

- Lines end at LF and nowhere else: U+2028, NEL, VT, FF and a lone CR stay inside their line.
- CRLF is read as LF and a byte order mark at the start of a file is removed; both are counted.
- A last line without LF is a line; an empty line is a line.
- Malformed UTF-8 stops with file:line:byte, or is replaced and counted (`errors="replace"`).
- Control characters, NUL included, are counted and left alone.
- gzip and xz are recognised by their first bytes, whatever the file is called.
- A damaged or bomb-like compressed file and a line of more than a mebibyte are refused.

Memory is a few blocks of a mebibyte, however long the file; but see `read_whole`.
"""

import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from attnkit.data.rows import Counts, Row
from attnkit.errors import DataError
from attnkit.storage.files import GZIP, input_error, open_file

Errors = Literal["strict", "replace"] | None
"""None stops like strict, where no recipe could say otherwise."""

BLOCK = 1 << 20
"""Bytes read at once."""
LONGEST = BLOCK
"""Longest line in bytes; not below BLOCK, so that only a line across blocks can exceed it."""
WHOLE = 256 << 20
"""Longest text that is read as a whole, in bytes."""
RATIO = 100
"""Largest ratio of text to compressed bytes, once the text exceeds FREE; prose has 2 to 5."""
FREE = 16 << 20
"""Bytes of text that any compressed file may hold."""
XZ_MEMORY = 256 << 20
"""Memory that unpacking xz data may take; what `xz -9` makes takes 65 MiB."""

XZ = b"\xfd7zXZ\x00"
BOM = b"\xef\xbb\xbf"
OTHER = {
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it to UTF-8: iconv -f UTF-16 -t UTF-8",
    b"PK\x03\x04": "a zip archive; unpack it, or compress the text with gzip",
    b"BZh": "bzip2 data; unpack it, or compress the text with gzip",
    b"\x28\xb5\x2f\xfd": "zstd data; unpack it, or compress the text with gzip",
}
"""First bytes of files that are not text, and what to do about them."""

CONTROL = bytes({*range(32), 127} - {0x09, 0x0A})
UPPER_CONTROL = re.compile(rb"\xc2[\x80-\x9f]")
SEGMENT = re.compile(r"<seg\b[^>]*>(.*)</seg>", re.IGNORECASE)


class Stream(NamedTuple):
    """An open file, such as standard input, whose lines are given as they come."""

    file: BinaryIO
    name: str

    def __str__(self) -> str:
        return self.name


def read_lines(
    path: Path | Stream, errors: Errors = "strict", counts: Counts | None = None
) -> Iterator[str]:
    """The lines of a text file, compressed or not, without their ends.

    For a file whose last line ends with LF these are as many as `wc -l` says.  Where a line is
    malformed, those before it are given first.

    Raises:
        MissingInputError: the file is not there.
        DataError: malformed UTF-8, a line that is too long, a damaged compressed file.
    """
    for text in _texts(path, errors, Counts() if counts is None else counts):
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        yield from lines


def read_whole(path: Path | Stream, errors: Errors = "strict", counts: Counts | None = None) -> str:
    """All of a text, for formats that are not read line by line; by the same rules.

    Raises as `read_lines`; a DataError where it is longer than WHOLE, whatever its lines.
    """
    counts, size, texts = Counts() if counts is None else counts, 0, []
    for text in _texts(path, errors, counts, WHOLE):
        size += len(text)
        if size > WHOLE:
            raise _too_long(path)
        texts.append(text)
    return "".join(texts)


def read_start(path: Path) -> bytes:
    """The first BLOCK of a text, or all of it, without a byte order mark."""
    return next(_blocks(path), b"").removeprefix(BOM)


def _texts(
    path: Path | Stream, errors: Errors, counts: Counts, longest: int = LONGEST
) -> Iterator[str]:
    """The text in pieces of whole lines."""
    first = True
    for number, piece in _pieces(path, longest):
        marked = first and piece.startswith(BOM)
        first = False
        if marked:
            counts.bom += 1
            piece = piece[len(BOM) :]
        if ends := piece.count(b"\r\n"):
            counts.crlf += ends
            piece = piece.replace(b"\r\n", b"\n")
        counts.control += len(piece) - len(piece.translate(None, CONTROL))
        counts.control += len(UPPER_CONTROL.findall(piece))
        try:
            text, fault = piece.decode("utf-8"), None
        except UnicodeDecodeError as error:
            if errors == "replace":
                text, fault = piece.decode("utf-8", "replace"), None
                counts.replaced += text.count("\ufffd") - piece.count(b"\xef\xbf\xbd")
            else:
                text = piece[: piece.rfind(b"\n", 0, error.start) + 1].decode("utf-8")
                fault = _malformed(path, piece, number, marked, error, errors)
        yield text
        if fault:
            raise fault


def read_text(path: Path, errors: Errors = "strict", counts: Counts | None = None) -> Iterator[str]:
    """Lines, or the segments of an .sgm file as WMT publishes them, spaces collapsed.

    Entities stay as they are, which is also what sacrebleu does with these files.

    Raises MissingInputError, DataError: as `read_lines`; also a segment that does not end.
    """
    lines = read_lines(path, errors, counts)
    if path.suffix != ".sgm":
        yield from lines
        return
    for number, line in enumerate(lines, 1):
        if match := SEGMENT.search(line):
            yield " ".join(match[1].split())
        elif "<seg" in line:
            raise DataError(f"{path}:{number}: a <seg> must end in its line")


def read_pairs(
    source: Path, target: Path, errors: Errors = "strict", counts: Counts | None = None
) -> Iterator[Row]:
    """Rows of two aligned files: line n of one belongs to line n of the other.

    Raises DataError: the files have different numbers of lines; both numbers are given.
    """
    left, right = read_text(source, errors, counts), read_text(target, errors, counts)
    for number, (ours, theirs) in enumerate(zip_longest(left, right), 1):
        if ours is None:
            raise ragged((source, target), (number - 1, number + sum(1 for _ in right)))
        if theirs is None:
            raise ragged((source, target), (number + sum(1 for _ in left), number - 1))
        yield Row(ours, theirs)


def ragged(paths: Sequence[Path], lines: Sequence[int]) -> DataError:
    """The error of two aligned files of `lines` many lines."""
    return DataError(
        f"{paths[0]} and {paths[1]} have {lines[0]:,} and {lines[1]:,} lines: aligned files must "
        f"have equally many (the first line without a partner is {min(lines) + 1:,})"
    )


def count_lines(path: Path) -> int:
    """Lines in a file, compressed or not, as `read_lines` counts them, without decoding."""
    total, last = 0, b"\n"
    for number, piece in _pieces(path):
        if number == 1 and piece == BOM:
            continue
        total += piece.count(b"\n")
        last = piece[-1:]
    return total + (last != b"\n")


def _malformed(
    path: Path | Stream, piece: bytes, number: int, marked: bool, error: UnicodeDecodeError,
    errors: Errors,
) -> DataError:  # fmt: skip
    """The error of a piece whose first line is line `number` of the file."""
    line = number + piece.count(b"\n", 0, error.start)
    byte = error.start - piece.rfind(b"\n", 0, error.start)
    if line == 1:
        if what := next((word for magic, word in OTHER.items() if piece.startswith(magic)), None):
            return DataError(f"{path}: this is {what}")
        byte += len(BOM) * marked
    advice = "convert the text to UTF-8"
    if errors:
        advice = "save the file as UTF-8, or set data.errors=replace to have such bytes replaced"
        advice += " and counted"
    bad = piece[error.start]
    return DataError(f"{path}:{line}:{byte}: malformed UTF-8 (byte 0x{bad:02x}); {advice}")


def _pieces(path: Path | Stream, longest: int = LONGEST) -> Iterator[tuple[int, bytes]]:
    """Blocks cut at line ends, each with the number of its first line, from 1."""
    number, rest = 1, bytearray()
    for block in _blocks(path):
        cut = block.rfind(b"\n") + 1
        if len(rest) + (block.find(b"\n") if cut else len(block)) > longest:
            if longest == WHOLE:
                raise _too_long(path)
            raise DataError(
                f"{path}:{number}: the line is longer than {LONGEST:,} bytes; is this a text "
                "file with a sentence or a row a line?"
            )
        if cut:
            piece = bytes(rest + block[:cut])
            yield number, piece
            number += piece.count(b"\n")
            rest = bytearray(block[cut:])
        else:
            rest += block
    if rest:
        yield number, bytes(rest)


def _too_long(path: Path | Stream) -> DataError:
    return DataError(
        f"{path}: is longer than {WHOLE:,} bytes, the most that is read as one document; write a "
        "row a line: jq -c '.[]' FILE.json > FILE.jsonl"
    )


def _blocks(path: Path | Stream) -> Iterator[bytes]:
    """The bytes of the text in blocks, decompressed where they begin as gzip or xz does."""
    live = isinstance(path, Stream)
    with nullcontext(path.file) if isinstance(path, Stream) else open_file(path) as file:
        kind, packed, size = "", _Counted(file), 0
        stream: Any = file
        try:
            # waits for the first bytes, as the first line would
            start = file.peek(len(XZ)) if isinstance(file, io.BufferedReader) else b""
            if start.startswith(GZIP):
                stream, kind = gzip.GzipFile(fileobj=packed), "gzip"  # type: ignore[call-overload]
            elif start.startswith(XZ):
                stream, kind = _XzReader(packed), "xz"
            # of a pipe or a terminal what is there, before more comes
            read = partial(stream.read1 if live and kind != "xz" else stream.read, BLOCK)
            while block := read():
                size += len(block)
                if kind and size > FREE and size > RATIO * packed.taken:
                    raise DataError(
                        f"{path}: compressed data that grows more than {RATIO}-fold is refused; "
                        "unpack it first if it is what you mean"
                    )
                yield block
        except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
            raise DataError(
                f"{path}: damaged {kind} data ({error}); fetch the file again"
            ) from error
        except OSError as error:
            raise input_error(error, Path(str(path))) from error


class _Counted:
    """A file, and how many bytes were read from it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.taken = file, 0

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.taken += len(data)
        return data


class _XzReader:
    """Reads what is packed in xz streams, one or several, within `XZ_MEMORY`."""

    def __init__(self, file: _Counted) -> None:
        self._file, self._rest = file, b""
        self._begin()

    def _begin(self) -> None:
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY)

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
        while True:
            data, self._rest = self._rest, b""
            if not data and (self._stream.eof or self._stream.needs_input):
                data = self._file.read(BLOCK)
                if not data and self._stream.eof:
                    return b""
                if not data:
                    raise EOFError("it ends too early")
            if self._stream.eof:
                data = data.lstrip(b"\0")  # padding, which may follow a stream
                if not data:
                    continue
                self._begin()
            block = self._stream.decompress(data, size)
            self._rest = self._stream.unused_data
            if block:
                return block
