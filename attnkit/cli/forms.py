"""Forms of a result: the words of --format, and tables as text for other programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnkit.cli import console
from attnkit.errors import UsageError
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


def write(table: "Table", format: str) -> None:
    """A table to standard output in any form but `table`, which each command draws itself."""
    from attnkit.show import formats

    render = {
        "markdown": formats.markdown,
        "latex": formats.latex,
        "csv": formats.csv_text,
        "json": formats.json_text,
    }
    console.write(render[format](table))
