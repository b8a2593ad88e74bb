"""Contexts from files and standard input, split into windows, each with its file and character range."""

import glob
import json
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import regex

from attnkit.data.formats import Stream, read_whole
from attnkit.data.records import read_records
from attnkit.data.rows import Counts
from attnkit.errors import DataError, MissingInputError, UsageError
from attnkit.text import counted, quoted

STDIN = "-"  # name of standard input

FORMATS = (".txt", ".md", ".jsonl", ".csv", ".tsv")
"""Suffixes of the files read from a folder; a file named directly with another suffix is read as plain text."""
CONVERTERS = dict.fromkeys((".html", ".htm", ".docx", ".epub"), "pandoc -t plain") | {".pdf": "pdftotext"}
"""Suffixes of rejected formats, with the command that converts each to text."""

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_IDEOGRAPH = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"(?<=\s)(?=\S)|(?<=[{_IDEOGRAPH}\u3001\u3002\uff01\uff0c\uff1f])(?=[{_IDEOGRAPH}])")
"""Start of a word, or of an ideograph after an ideograph or CJK punctuation."""


class Context(NamedTuple):
    """A text that is read in one row."""

    text: str
    file: str
    """File name, with the line number if each line is a context."""
    start: int = 0
    """Offset of the first character in the file or in the text of the line."""
    whole: bool = True
    """Whether the context is the entire file or line."""

    @property
    def end(self) -> int:
        """Offset after the last character."""
        return self.start + len(self.text)

    @property
    def name(self) -> str:
        """File name, with the character range unless `whole`."""
        return self.file if self.whole else f"{self.file}[{self.start}:{self.end}]"


def find(names: Iterable[str]) -> list[str]:
    """Expand names of files, folders and glob patterns (`notes/**/*.md`) into file names.

    A folder stands for all files of `FORMATS` below it, sorted by name. Raises MissingInputError if a name
    has no file.
    """
    paths: list[str] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            # glob skips hidden files and does not raise on invalid names
            names_below = glob.glob(f"{glob.escape(name)}/**/*", recursive=True)
            matches = [match for match in names_below if Path(match).suffix.lower() in FORMATS]
            reason = f"the folder has no file of {', '.join(FORMATS)}"
        elif name != STDIN and not path.exists() and glob.has_magic(name):
            matches, reason = glob.glob(name, recursive=True), "no file matches this pattern"
        else:
            paths.append(name)
            continue
        if not (files := sorted(match for match in matches if Path(match).is_file())):
            raise MissingInputError(f"{quoted(name, 200)}: {reason}")
        paths += files
    return paths


def from_file(path: str, *, lines: bool = False) -> list[Context]:
    """Read the contexts of a file, or of standard input ("-").

    JSON Lines have one context per line (see `_context`), tables one per row, in the column `text` or the only column;
    any other file is one context, or JSON Lines with `lines`.

    Raises:
        MissingInputError: The file does not exist.
        DataError: The file is not UTF-8 (file:line:byte), violates its format (file:line), or is not plain text.
    """
    if (suffix := Path(path).suffix.lower()) in CONVERTERS:
        raise DataError(
            f"{path}: a {suffix} file is not plain text; convert the file first: {CONVERTERS[suffix]} {path}"
        )
    try:
        if suffix in (".csv", ".tsv"):
            return _rows(path, suffix[1:])
        name = "standard input" if path == STDIN else path
        text = read_whole(Stream(sys.stdin.buffer, name) if path == STDIN else Path(path), None)
    except ValueError as error:  # a NUL in the name
        raise UsageError(f"{quoted(path)}: not a valid file name") from error
    if suffix != ".jsonl" and not lines:
        return [Context(_printable(text), name)]
    return [_context(line, f"{name}:{i}") for i, line in enumerate(text.split("\n"), 1) if line.strip()]


def _rows(path: str, kind: str) -> list[Context]:
    """Read the contexts of a table, each with the number of the line on which its row begins."""
    records = read_records(Path(path), kind, None, Counts(), numbered=True)
    rows = [(origin, list(values.values())) for origin, values in records]
    column, names = 0, [str(name).strip().lower() for name in (rows[0][1] if rows else ())]
    if "text" in names:
        column, rows = names.index("text"), rows[1:]
    elif len(names) > 1:
        raise DataError(
            f"{rows[0][0]}: no column has the name text; rename one of the columns {quoted(', '.join(names))}"
        )
    return [Context(_printable(cells[column].rstrip("\n")), origin) for origin, cells in rows]


def prepare(
    contexts: Iterable[Context], count: Callable[[str], int], window: int | None = None
) -> tuple[list[Context], list[str]]:
    """Drop empty and duplicate contexts, split the others into windows, and return them with notes on both.

    Args:
        count: function that returns the number of tokens of a text.
        window: maximum number of tokens per context; longer contexts are split. None: no splitting.

    Raises:
        UsageError: There is no context, or a single character has more tokens than a window.
    """
    unique: dict[str, Context] = {}
    duplicates, empty, notes = list[str](), list[str](), list[str]()
    for context in contexts:
        key = context.text.strip()
        if not key:
            empty.append(context.name)
        elif context is not unique.setdefault(key, context):
            duplicates.append(f"{context.name} = {unique[key].name}")
    if not unique:
        detail = f" ({len(empty):,} empty)" if empty else ""
        raise UsageError(f"there is no context{detail}: add --context FILE or --contexts FILE.jsonl")
    for names, kind in ((empty, "empty"), (duplicates, "duplicate")):
        if names:
            more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
            notes.append(
                f"{len(names):,} {kind} context{'s' * (len(names) != 1)} skipped: {', '.join(names[:3])}{more}"
            )
    if window is None:
        return list(unique.values()), notes
    rows, num_split = list[Context](), 0
    for context in unique.values():
        spans = windows(context.text, count, window)
        num_split += len(spans) > 1
        rows += [
            Context(context.text[start:end], context.file, start, len(spans) == 1)
            for start, end in spans
            if context.text[start:end].strip()
        ]
    if num_split:
        notes.append(
            f"{counted(num_split, 'context')} split into windows of {window:,} tokens ({len(rows):,} rows in total)"
        )
    return rows, notes


def windows(text: str, count: Callable[[str], int], size: int) -> list[tuple[int, int]]:
    """Split a text into consecutive spans (start, end) that cover it.

    A span has at most `size` tokens when encoded alone, and begins and ends at word boundaries if possible. Raises
    UsageError if a single character has more than `size` tokens.
    """
    cuts = [0]
    words = [*(match.start() for match in _WORD.finditer(text)), len(text)]
    for start, end in pairwise([0, *(offset for offset in words if offset)]):
        # a text has at most one token per byte plus one for its start, so only long words are counted
        too_long = len(text[start:end].encode()) >= size and count(text[start:end]) > size
        parts = regex.findall(r"\X", text[start:end]) if too_long else [text[start:end]]
        cuts += list(accumulate(map(len, parts), initial=start))[1:]
    spans: list[tuple[int, int]] = []
    i = 0
    while i < len(cuts) - 1:
        start = cuts[i]
        ends = cuts[i + 1 : i + 1 + 4 * size]  # a mean of less than a quarter token per word is rare
        fitting = bisect_left(ends, True, key=lambda end: count(text[start:end]) > size)
        if not fitting:
            raise UsageError(f"a window of {size:,} tokens is too small for the character {quoted(text[start])}")
        i += fitting
        spans.append((start, cuts[i]))
    return spans


def _printable(text: str) -> str:
    """Replace control characters one for one, so that character offsets do not change."""
    return _SURROGATE.sub("\ufffd", _CONTROL.sub(" ", text))


def _context(line: str, origin: str) -> Context:
    """Parse a context from a line of JSON: a string, or an object with the field `text`."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{origin}:{error.colno}: not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{origin}: cannot read the JSON: {error}") from error
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise DataError(f'{origin}: each line must be a JSON string or {{"text": "..."}}')
    return Context(_printable(text), origin)
