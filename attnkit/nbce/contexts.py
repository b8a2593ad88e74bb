"""Contexts from files, folders, patterns and standard input, split into windows.

Every context knows which characters of a file it is, so that an answer can name its source.
"""

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
from attnkit.text import quoted

STDIN = "-"  # the name of standard input

FORMATS = (".txt", ".md", ".jsonl", ".csv", ".tsv")
"""What is read of a folder; a file that is named may have any other suffix, and is then text."""
CONVERTERS = dict.fromkeys((".html", ".htm", ".docx", ".epub"), "pandoc -t plain") | {".pdf": "pdftotext"}
"""Files that are no plain text, and what makes text of them."""

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_IDEOGRAPH = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"(?<=\s)(?=\S)|(?<=[{_IDEOGRAPH}\u3001\u3002\uff01\uff0c\uff1f])(?=[{_IDEOGRAPH}])")
"""Where a word begins, or an ideograph after another."""


class Context(NamedTuple):
    """A text that is read in one row."""

    text: str
    file: str
    """Where it is from, with the number of the line where a line is a context."""
    start: int = 0
    """Its first character in the file, or in the text of the line."""
    whole: bool = True
    """Whether it is all that the file or the line holds."""

    @property
    def end(self) -> int:
        """The character behind its last."""
        return self.start + len(self.text)

    @property
    def name(self) -> str:
        """The file, and which characters of it."""
        return self.file if self.whole else f"{self.file}[{self.start}:{self.end}]"


def find(names: Iterable[str]) -> list[str]:
    """The files that names of files, folders and patterns (`notes/**/*.md`) stand for.

    A folder stands for all files of `FORMATS` below it, in the order of their names.

    Raises MissingInputError: a folder or a pattern has no file.
    """
    found: list[str] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            # glob leaves out hidden files, and never raises on names that cannot be
            every = glob.glob(f"{glob.escape(name)}/**/*", recursive=True)
            some = [one for one in every if Path(one).suffix.lower() in FORMATS]
            what = f"the folder has no file of {', '.join(FORMATS)}"
        elif name != STDIN and not path.exists() and glob.has_magic(name):
            some, what = glob.glob(name, recursive=True), "no file has such a name"
        else:
            found.append(name)
            continue
        if not (files := sorted(one for one in some if Path(one).is_file())):
            raise MissingInputError(f"{quoted(name, 200)}: {what}")
        found += files
    return found


def from_file(path: str, *, lines: bool = False) -> list[Context]:
    """The contexts of a file, or of standard input ("-").

    JSON lines hold a context each (see `_context`), tables one a row, in the column `text` or the only one; any other
    file is one context. With `lines` a file is JSON lines or a table whatever its suffix.

    Raises:
        MissingInputError: the file is not there.
        DataError: it is not UTF-8 (file:line:byte), not of its format (file:line), or no plain text.
    """
    if (suffix := Path(path).suffix.lower()) in CONVERTERS:
        raise DataError(f"{path}: a {suffix} file is no plain text; convert it first: {CONVERTERS[suffix]} {path}")
    try:
        if suffix in (".csv", ".tsv"):
            return _rows(path, suffix[1:])
        name = "standard input" if path == STDIN else path
        text = read_whole(Stream(sys.stdin.buffer, name) if path == STDIN else Path(path), None)
    except ValueError as error:  # a NUL in the name
        raise UsageError(f"{quoted(path)}: cannot be the name of a file") from error
    if suffix != ".jsonl" and not lines:
        return [Context(_printable(text), name)]
    lines_of = enumerate(text.split("\n"), 1)
    return [_context(line, f"{name}:{number}") for number, line in lines_of if line.strip()]


def _rows(path: str, kind: str) -> list[Context]:
    """The contexts of a table; each is named by the line on which its row begins."""
    records = read_records(Path(path), kind, None, Counts(), numbered=True)
    rows = [(place, list(values.values())) for place, values in records]
    column, names = 0, [str(name).strip().lower() for name in (rows[0][1] if rows else ())]
    if "text" in names:
        column, rows = names.index("text"), rows[1:]
    elif len(names) > 1:
        shown = quoted(", ".join(names))
        raise DataError(f"{rows[0][0]}: no column is named text, and there are several: {shown}")
    return [Context(_printable(cells[column].rstrip("\n")), place) for place, cells in rows]


def prepare(
    contexts: Iterable[Context], count: Callable[[str], int], window: int | None = None
) -> tuple[list[Context], list[str]]:
    """Contexts without empty and repeated ones, split into windows.

    Args:
        contexts: as read.
        count: gives the tokens of a text.
        window: most tokens of a context; longer ones are split. None: they are not.

    Returns:
        The contexts, and a sentence each on what was left out or split.

    Raises UsageError: there is no context, or one character has more tokens than a window.
    """
    first: dict[str, Context] = {}
    again, empty, notes = list[str](), list[str](), list[str]()
    for context in contexts:
        key = context.text.strip()
        if not key:
            empty.append(context.name)
        elif context is not first.setdefault(key, context):
            again.append(f"{context.name} = {first[key].name}")
    if not first:
        found = f" ({len(empty):,} empty)" if empty else ""
        raise UsageError(f"there is no context{found}: give one with --context FILE or --contexts FILE.jsonl")
    for names, what in ((empty, "empty"), (again, "duplicate")):
        if names:
            more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
            notes.append(f"left out {len(names):,} {what}: {', '.join(names[:3])}{more}")
    if window is None:
        return list(first.values()), notes
    rows, many = list[Context](), 0
    for context in first.values():
        spans = windows(context.text, count, window)
        many += len(spans) > 1
        rows += [
            Context(context.text[start:end], context.file, start, len(spans) == 1)
            for start, end in spans
            if context.text[start:end].strip()
        ]
    if many:
        notes.append(f"contexts split into windows of {window:,} tokens: {many:,}; rows: {len(rows):,}")
    return rows, notes


def windows(text: str, count: Callable[[str], int], size: int) -> list[tuple[int, int]]:
    """Stretches (start, end) of a text, one behind the other, that cover it.

    A stretch has at most `size` tokens when it is encoded by itself, and begins and ends between words where it can.

    Raises UsageError: one character has more than `size` tokens.
    """
    cuts = [0]
    words = [*(match.start() for match in _WORD.finditer(text)), len(text)]
    for start, end in pairwise([0, *(place for place in words if place)]):
        # no text has more tokens than bytes and one for its start: only long words need be counted
        long = len(text[start:end].encode()) >= size and count(text[start:end]) > size
        parts = regex.findall(r"\X", text[start:end]) if long else [text[start:end]]
        cuts += list(accumulate(map(len, parts), initial=start))[1:]
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(cuts) - 1:
        start = cuts[at]
        ends = cuts[at + 1 : at + 1 + 4 * size]  # a word of less than a quarter token is rare
        fit = bisect_left(ends, True, key=lambda end: count(text[start:end]) > size)
        if not fit:
            raise UsageError(f"a window of {size:,} tokens is too small for the character {quoted(text[start])}")
        at += fit
        found.append((start, cuts[at]))
    return found


def _printable(text: str) -> str:
    """The text with spaces for characters that command terminals, so that places stay."""
    return _SURROGATE.sub("\ufffd", _CONTROL.sub(" ", text))


def _context(line: str, place: str) -> Context:
    """The context of a line of JSON: a string, or {"text": ...} with any other fields."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}:{error.colno}: not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{place}: not JSON that can be read: {error}") from error
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise DataError(f'{place}: a line must be a string or {{"text": "..."}}')
    return Context(_printable(text), place)
