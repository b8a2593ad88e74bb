"""Results on standard output in any of the forms of --format, and files to save."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnkit.cli import console
from attnkit.errors import OutputPathError, UsageError
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.show.table import Table

IN_PIPES = 10_000
"""Columns of a pipe or a file, where a record is one line unless COLUMNS says how wide it is."""
PICTURES = (".png", ".svg", ".pdf")  # suffixes of files that matplotlib draws


def check_save(path: Path, suffixes: Sequence[str], option: str = "--save") -> None:
    """Refuse a file that an option could not write, before any work is done.

    Raises:
        UsageError: its suffix is none of these.
        OutputPathError: it is a folder, or its folder does not exist.
        UnavailableError: it is a picture, and matplotlib is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise UsageError(
            f"{option} {path}: unknown suffix {quoted(path.suffix)}; choose from "
            f"{' '.join(suffixes)}"
        )
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise OutputPathError(f"{option} {path}: cannot be created: {why}")
    if suffix in PICTURES:
        from attnkit.show.figure import require

        require(suffix[1:])


def save(path: Path, content: str | bytes, what: str = "") -> None:
    """Write a file, whole or not at all, and report it."""
    from attnkit.storage.files import atomic_write

    atomic_write(path, content)
    console.say(f"wrote {path}{what}")


def write_json(value: Any, indent: int | None = 2) -> None:
    """A JSON document, or without indent an object on a line, to standard output."""
    console.write(json.dumps(value, indent=indent, allow_nan=False) + "\n")


def write_tables(tables: Sequence["Table"], format: str) -> None:
    """Tables to standard output, an empty line between two of them."""
    from attnkit.show import table_formats

    render = {
        "markdown": table_formats.markdown,
        "latex": table_formats.latex,
        "csv": table_formats.csv_text,
        "json": table_formats.json_text,
    }
    for place, table in enumerate(tables):
        if place and format != "csv":
            console.write("\n")
        if format != "table":
            console.write(render[format](table))
            continue
        screen = console.stdout()
        if not screen.live and not os.environ.get("COLUMNS"):
            screen.width = IN_PIPES
        screen.print(table)
