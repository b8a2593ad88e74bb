"""Readers of text: lines, aligned files, plain text and dialogues, also compressed by gzip or xz.

All formats follow the same rules:

- Only LF ends a line: U+2028, NEL, VT, FF and a lone CR stay inside their line.
- CRLF is read as LF; a byte order mark at the start of a file is removed.
- A last line without LF is a line; an empty line is a line.
- Malformed UTF-8 raises an error with file:line:byte, or is replaced and counted (`errors="replace"`).
- Control characters, including NUL, are kept.
- gzip and xz are recognized by their first bytes, independent of the file's name.
- Damaged or bomb-like compressed files and lines of more than a mebibyte are refused.

Lines are streamed in memory that does not grow with the file, except by `read_whole`.
"""

import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from attnkit.data.rows import Counts, Row
from attnkit.errors import DataError
from attnkit.storage.files import GZIP, input_error, open_file

Errors = Literal["strict", "replace"] | None
"""Handling of malformed UTF-8; None: strict, for input that no recipe describes."""

MAX_LINE_BYTES = 1 << 20
"""Maximum length of a line in bytes."""
MAX_TEXT_BYTES = 256 << 20
"""Maximum length of a text that is read as a whole, in bytes."""
MAX_RATIO = 100
"""Maximum ratio of text to compressed bytes, once the text exceeds FREE; prose has 2 to 5."""
FREE = 16 << 20
"""Bytes of text that any compressed file may hold."""
XZ_MEMORY = 256 << 20
"""Maximum memory for unpacking xz data in bytes; data of `xz -9` takes 65 MiB."""

XZ = b"\xfd7zXZ\x00"
BOM = "\ufeff"
NOT_TEXT = {
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it to UTF-8: iconv -f UTF-16 -t UTF-8",
    b"PK\x03\x04": "a zip archive; unpack it, or compress the text with gzip",
    b"BZh": "bzip2 data; unpack it, or compress the text with gzip",
    b"\x28\xb5\x2f\xfd": "zstd data; unpack it, or compress the text with gzip",
}
"""First bytes of files that are not text, and advice on each."""


PERSONA_END = " __eop__ "
TURN_END = " __eot__ "
MAX_HISTORY = 5
"""Maximum number of earlier turns in a row of ParlAI's format."""
SEGMENT = re.compile(r"<seg\b[^>]*>(.*)</seg>", re.IGNORECASE)


class Stream(NamedTuple):
    """Open file, such as standard input, whose lines are read as they arrive."""

    file: BinaryIO
    name: str

    def __str__(self) -> str:
        return self.name


def read_lines(path: Path | Stream, errors: Errors = "strict", counts: Counts | None = None) -> Iterator[str]:
    """Yield the lines of a text file, compressed or not, without line ends.

    If the last line ends with LF, their number is that of `wc -l`. The lines before a malformed line are yielded
    first.

    Raises:
        MissingInputError: The file does not exist.
        DataError: Malformed UTF-8, a line that is too long, or a damaged compressed file.
    """
    counts, number, size = Counts() if counts is None else counts, 0, 0
    with _opened(path) as (text, packed):
        while line := text.readline(MAX_LINE_BYTES + 1):
            number += 1
            size += len(line)
            if packed:
                _check_growth(path, size, packed)
            end = 2 if line.endswith(b"\r\n") else line.endswith(b"\n")
            if len(line) > MAX_LINE_BYTES and not end:
                raise DataError(
                    f"{path}:{number}: the line is longer than {MAX_LINE_BYTES:,} bytes; the file must be text "
                    "with one sentence or row per line"
                )
            decoded = _decoded(line[: len(line) - end], path, number, errors, counts)
            if number == 1 and decoded.startswith(BOM):
                decoded = decoded[1:]
                if not (decoded or end):
                    return
            yield decoded


def read_whole(path: Path | Stream, errors: Errors = "strict", counts: Counts | None = None) -> str:
    """Return a whole text by the same rules; raises as `read_lines`, and DataError beyond MAX_TEXT_BYTES."""
    with _opened(path) as (text, packed):
        content = text.read(MAX_TEXT_BYTES + 1)
        if packed:
            _check_growth(path, len(content), packed)
    if len(content) > MAX_TEXT_BYTES:
        raise DataError(
            f"{path}: is longer than {MAX_TEXT_BYTES:,} bytes, the maximum for one document; write one "
            "row per line: jq -c '.[]' FILE.json > FILE.jsonl"
        )
    decoded = _decoded(content, path, 1, errors, Counts() if counts is None else counts)
    return decoded.removeprefix(BOM).replace("\r\n", "\n")


def read_start(path: Path) -> bytes:
    """Return the first mebibyte of a text, without a byte order mark."""
    with _opened(path) as (text, _):
        return text.read(MAX_LINE_BYTES).removeprefix(BOM.encode())


def read_text(path: Path, errors: Errors = "strict", counts: Counts | None = None) -> Iterator[str]:
    """Yield lines, or the segments of an .sgm file as WMT publishes them, with spaces collapsed.

    Entities are kept, as in sacrebleu. Raises as `read_lines`; DataError also if a segment does not end in its line.
    """
    lines = read_lines(path, errors, counts)
    if path.suffix != ".sgm":
        yield from lines
        return
    for number, line in enumerate(lines, 1):
        if match := SEGMENT.search(line):
            yield " ".join(match[1].split())
        elif "<seg" in line:
            raise DataError(f"{path}:{number}: <seg> and </seg> must be on the same line")


def read_pairs(source: Path, target: Path, errors: Errors = "strict", counts: Counts | None = None) -> Iterator[Row]:
    """Yield rows of two aligned files, line by line. Raises DataError with both numbers of lines if they differ."""
    sources, targets = read_text(source, errors, counts), read_text(target, errors, counts)
    for number, (source_line, target_line) in enumerate(zip_longest(sources, targets), 1):
        if source_line is None:
            raise ragged((source, target), (number - 1, number + sum(1 for _ in targets)))
        if target_line is None:
            raise ragged((source, target), (number + sum(1 for _ in sources), number - 1))
        yield Row(source_line, target_line)


def join_dialogue(persona: Sequence[str], turns: Sequence[str]) -> str:
    """Return one source text: persona sentences, __eop__, turns joined by __eot__, oldest first."""
    history = TURN_END.join(turns)
    return (" ".join(persona) + PERSONA_END + history).strip() if persona else history


def read_parlai(path: Path, errors: Errors = "strict", counts: Counts | None = None) -> Iterator[Row]:
    """Yield the rows of a PersonaChat file of ParlAI: each reply of the speaker with the persona and earlier turns.

    Lines are `N your persona: text` or `N turn TAB reply TAB ...`; N is 1 at the start of a dialogue.

    Raises MissingInputError if the file does not exist, DataError (file:line) for any other line.
    """
    persona: list[str] = []
    turns: list[str] = []
    for position, line in enumerate(read_lines(path, errors, counts), 1):
        number, _, rest = line.partition(" ")
        if number == "1":
            persona, turns = [], []
        turn, *replies = rest.split("\t")
        if turn.startswith("your persona: "):
            persona.append(turn.removeprefix("your persona: "))
            continue
        if not number.isdecimal() or not replies:
            raise DataError(f"{path}:{position}: must be a number, a turn, a tab and a reply")
        if turn != "__SILENCE__":
            turns.append(turn)
        yield Row(join_dialogue(persona, turns[-MAX_HISTORY:]), replies[0])
        turns.append(replies[0])


def ragged(paths: Sequence[Path], lines: Sequence[int]) -> DataError:
    """Return the error for two aligned files with these numbers of lines."""
    return DataError(
        f"{paths[0]} and {paths[1]} have {lines[0]:,} and {lines[1]:,} lines: aligned files must have "
        f"the same number of lines (the first unpaired line is {min(lines) + 1:,})"
    )


def _decoded(text: bytes, path: Path | Stream, number: int, errors: Errors, counts: Counts) -> str:
    """Decode text that begins with line `number` of a file."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        if errors == "replace":
            decoded = text.decode("utf-8", "replace")
            counts.replaced += decoded.count("\ufffd") - text.count(b"\xef\xbf\xbd")
            return decoded
        line = number + text.count(b"\n", 0, error.start)
        byte = error.start - text.rfind(b"\n", 0, error.start)
        kind = next((kind for magic, kind in NOT_TEXT.items() if text.startswith(magic)), None)
        if line == 1 and kind:
            raise DataError(f"{path}: this is {kind}") from error
        advice = "convert the text to UTF-8"
        if errors:
            advice = "save the file as UTF-8, or set data.errors=replace to replace and count malformed bytes"
        value = text[error.start]
        raise DataError(f"{path}:{line}:{byte}: malformed UTF-8 (byte 0x{value:02x}); {advice}") from error


def _check_growth(path: Path | Stream, size: int, packed: "_CountingFile") -> None:
    """Refuse text that is far longer than its compressed bytes, as in a decompression bomb."""
    if size > FREE and size > MAX_RATIO * packed.bytes_read:
        raise DataError(
            f"{path}: the text is more than {MAX_RATIO} times as long as the compressed data; if the file "
            "is genuine, unpack the file first"
        )


@contextmanager
def _opened(path: Path | Stream) -> Iterator[tuple[BinaryIO, "_CountingFile | None"]]:
    """Yield a text, unpacked if it is gzip or xz data, and the compressed file or None."""
    kind = ""
    with nullcontext(path.file) if isinstance(path, Stream) else open_file(path) as file:
        try:
            # blocks until the first bytes arrive, as reading the first line would
            start = file.peek(len(XZ)) if isinstance(file, io.BufferedReader) else b""
            text: Any = file
            packed: Any = _CountingFile(file)
            if start.startswith(GZIP):
                text, kind = gzip.GzipFile(fileobj=packed), "gzip"
            elif start.startswith(XZ):
                text, kind = _XzFile(packed), "xz"
            if kind:  # readline is faster in a buffer
                text = io.BufferedReader(text, MAX_LINE_BYTES)
            yield text, packed if kind else None
        except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
            raise DataError(f"{path}: damaged {kind} data ({error}); fetch the file again") from error
        except OSError as error:
            raise input_error(error, Path(str(path))) from error


class _CountingFile:
    """File that counts the bytes read, which a pipe cannot report."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.bytes_read = file, 0

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.bytes_read += len(data)
        return data


class _XzFile(io.RawIOBase):
    """Text in xz streams; `lzma.LZMAFile` drops data after a damaged header and does not limit its memory."""

    def __init__(self, file: _CountingFile) -> None:
        self._file, self._rest = file, b""
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            data, self._rest = self._rest, b""
            if not data and (self._stream.eof or self._stream.needs_input):
                data = self._file.read(MAX_LINE_BYTES)
                if not data and self._stream.eof:
                    return 0
                if not data:
                    raise EOFError("unexpected end of data")
            if self._stream.eof:
                data = data.lstrip(b"\0")  # padding after a stream
                if not data:
                    continue
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY)
            block = self._stream.decompress(data, len(buffer))
            self._rest = self._stream.unused_data
            if block:
                buffer[: len(block)] = block
                return len(block)
