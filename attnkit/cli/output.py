"""Forms of a result: the words of --format, tables as text for other programs, files to save."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnkit.cli import console
from attnkit.errors import OutputPathError, UsageError
from attnkit.text import nearest, quoted

if TYPE_CHECKING:
    from attnkit.show.table import Table

FORMATS = ("table", "markdown", "latex", "csv", "json")


def check(format: str) -> None:
    """Refuse a form that is not known.

    Raises:
        UsageError: it is none of FORMATS.
    """
    if format not in FORMATS:
        raise UsageError(f"--format {quoted(format)}: {choices(format, FORMATS)}")


def choices(word: str, known: Sequence[str]) -> str:
    """How to go on after an unknown word."""
    near = nearest(word, known)
    return f"{f'did you mean {near}? ' if near else ''}choose from {', '.join(known)}"


def check_saves(path: Path, suffixes: Sequence[str]) -> None:
    """Refuse a file that --save could not write, before any work is done.

    Raises:
        UsageError: its suffix is none of these.
        OutputPathError: it is a folder, or in none.
    """
    if path.suffix.lower() not in suffixes:
        raise UsageError(
            f"--save {path}: suffix {quoted(path.suffix)} is not known; choose from "
            + " ".join(suffixes)
        )
    check_place(path)


def check_place(path: Path) -> None:
    """The second half of `check_saves`, for a command with a rule of its own for the suffix."""
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise OutputPathError(f"--save {path}: cannot be created: {why}")


def show(tables: Sequence["Table"]) -> None:
    """Tables to standard output as fits the screen, a blank line between two."""
    for place, table in enumerate(tables):
        if place:
            console.stdout().print()
        console.stdout().print(table)


def write(table: "Table", format: str) -> None:
    """A table to standard output in any form but `table`, which each command draws itself."""
    from attnkit.show import table_formats

    render = {
        "markdown": table_formats.markdown,
        "latex": table_formats.latex,
        "csv": table_formats.csv_text,
        "json": table_formats.json_text,
    }
    console.write(render[format](table))
