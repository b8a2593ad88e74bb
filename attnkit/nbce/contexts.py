"""Contexts from files, JSON lines and standard input; split into windows, and packed into rows.

Every context knows the characters of the files that it was made of, so that an answer can name its
source.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnkit.errors import DataError, UsageError
from attnkit.nbce.baselines import JOIN
from attnkit.nbce.splitting import Unit, windows
from attnkit.storage.files import input_error
from attnkit.text import quoted

STDIN = "-"
"""The name of standard input."""

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class TextSpan(NamedTuple):
    """A stretch of a file, or of a line of it."""

    name: str
    """The file, with the number of the line where a line is a context."""
    start: int
    """Its first character, from 0."""
    end: int
    """The one behind its last."""
    whole: bool = True
    """Whether it is all that there is under this name."""

    def __str__(self) -> str:
        """The name, and which characters of it."""
        return self.name if self.whole else f"{self.name}[{self.start}:{self.end}]"


class Context(NamedTuple):
    """A text that is read in one row."""

    text: str
    parts: tuple[TextSpan, ...]
    """What it was made of, in order."""

    @property
    def name(self) -> str:
        """Its parts, for people."""
        return " + ".join(map(str, self.parts))


def from_text(path: str) -> Context:
    """A file, or standard input ("-"), as one context.

    Raises:
        MissingInputError: the file is not there.
        DataError: it is not UTF-8 (file:line:byte).
    """
    name, text = _read(path)
    return _whole(text, name)


def from_jsonl(path: str) -> list[Context]:
    """A context a line: a string, {"text": ...}, or {"contexts": [...]} with several of them.

    A blank line is none.  Other fields are left alone.

    Raises:
        MissingInputError: the file is not there.
        DataError: it is not UTF-8, or a line is not such JSON (file:line:column).
    """
    name, text = _read(path)
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        texts = _texts(line, f"{name}:{number}") if line.strip() else []
        for place, one in enumerate(texts, 1):
            suffix = f".{place}" if len(texts) > 1 else ""
            found.append(_whole(one, f"{name}:{number}{suffix}"))
    return found


def prepare(
    contexts: Iterable[Context],
    count: Callable[[str], int],
    *,
    window: int | None = None,
    overlap: int = 0,
    unit: Unit = "tokens",
    pack: int | None = None,
) -> tuple[list[Context], list[str]]:
    """Contexts as rows are to read them: no empty one, none twice, split and packed as asked.

    Args:
        contexts: as read.
        count: gives the tokens of a text.
        window: size of the windows into which longer contexts are split; None: they are not.
        overlap: how much of a window is read again in the next one.
        unit: what `window` and `overlap` are numbers of.
        pack: most tokens of a row that holds several neighbouring contexts; None: one each.

    Returns:
        The contexts, and a sentence each on what was left out, split or packed.

    Raises:
        UsageError: there is no context, or a size is out of range.
    """
    contexts = list(contexts)
    notes: list[str] = []
    empty = [context.name for context in contexts if not context.text.strip()]
    if len(empty) == len(contexts):
        number = f"all {len(empty)} are" if empty[1:] else "it is"
        raise UsageError(
            f"there is no context{f' ({number} empty)' if empty else ''}: give one with --context "
            "FILE or --contexts FILE.jsonl"
        )
    if empty:
        notes.append(f"left out {_counted(len(empty), 'empty context')}: {_some(empty)}")
    first: dict[str, Context] = {}
    again = []
    for context in contexts:
        if key := context.text.strip():
            if key in first:
                again.append(f"{context.name} = {first[key].name}")
            first.setdefault(key, context)
    if again:
        notes.append(f"left out {_counted(len(again), 'duplicate context')}: {_some(again)}")
    left = list(first.values())
    if window is not None:
        left = _split(left, count, window, overlap, unit, notes)
    elif overlap:
        raise UsageError("an overlap is for windows: give their size too (--window)")
    if pack is not None:
        left = _packed(left, count, pack, notes)
    return left, notes


def _split(
    contexts: Sequence[Context],
    count: Callable[[str], int],
    size: int,
    overlap: int,
    unit: Unit,
    notes: list[str],
) -> list[Context]:
    """Windows of those that are longer."""
    found, many = [], 0
    for context in contexts:
        spans = windows(context.text, count, size, overlap, unit)
        if len(spans) == 1:
            found.append(context)
            continue
        many += 1
        (part,) = context.parts
        found += [
            Context(context.text[start:end], (TextSpan(part.name, start, end, False),))
            for start, end in spans
            if context.text[start:end].strip()
        ]
    if many:
        units = unit if size > 1 else unit.removesuffix("s")
        notes.append(
            f"{_counted(many)} split into windows of {size:,} {units} (overlap {overlap:,}): "
            f"{len(found):,} rows"
        )
    return found


def _packed(
    contexts: Sequence[Context], count: Callable[[str], int], most: int, notes: list[str]
) -> list[Context]:
    """Neighbours in one row while they fit; one that is longer has a row of its own."""
    if most < 1:
        raise UsageError(f"a row must have room for at least 1 token, got {most}")
    rows: list[Context] = []
    for context in contexts:
        if rows:
            both = rows[-1].text + JOIN + context.text
            if count(both) <= most:
                rows[-1] = Context(both, rows[-1].parts + context.parts)
                continue
        rows.append(context)
    if len(rows) < len(contexts):
        packed = _counted(len(rows), "row")
        notes.append(f"{_counted(len(contexts))} packed into {packed} of at most {most:,} tokens")
    return rows


def _counted(number: int, noun: str = "context") -> str:
    return f"{number:,} {noun}" + "s" * (number > 1)


def _some(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _whole(text: str, name: str) -> Context:
    """A text as it is read: characters that command terminals are spaces, so places stay."""
    text = _SURROGATE.sub("\ufffd", _CONTROL.sub(" ", text))
    return Context(text, (TextSpan(name, 0, len(text)),))


def _read(path: str) -> tuple[str, str]:
    """The name and the text of a file."""
    name = "standard input" if path == STDIN else path
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    except OSError as error:
        raise input_error(error, Path(name)) from error
    except ValueError as error:  # a NUL in the name
        raise UsageError(f"{quoted(path)}: cannot be the name of a file") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = error.start - data.rfind(b"\n", 0, error.start)
        raise DataError(
            f"{name}:{line}:{byte}: malformed UTF-8 (byte 0x{data[error.start]:02x}); save the "
            "context as UTF-8"
        ) from error
    return name, text.removeprefix("\ufeff").replace("\r\n", "\n")


def _texts(line: str, place: str) -> list[str]:
    """The contexts that a line of JSON holds."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}:{error.colno}: not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{place}:1: not JSON that can be read: {error}") from error
    many = isinstance(value, dict) and "contexts" in value
    column = line.find('"contexts"') + 1 if many else len(line) - len(line.lstrip()) + 1
    inside = value["contexts"] if many else [value]
    inside = inside if isinstance(inside, list) else [None]
    texts: list[Any] = [one.get("text") if isinstance(one, dict) else one for one in inside]
    if not all(isinstance(text, str) for text in texts):
        raise DataError(
            f'{place}:{column}: a line must be a string, {{"text": "..."}} or {{"contexts": '
            "[...]}, a list of those"
        )
    return texts
