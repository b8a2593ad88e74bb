"""Results on standard output in the formats of --format, and files to save."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnkit.cli import console
from attnkit.errors import OutputPathError, UsageError
from attnkit.runs.layout import refuse_part_of_run
from attnkit.text import hint, quoted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnkit.show.figure import Picture
    from attnkit.show.table import Table

PIPE_WIDTH = 10_000
"""Width of tables in a pipe or a file, which keeps a record on one line; the variable COLUMNS overrides it."""
PICTURES = (".png", ".svg", ".pdf")  # suffixes of files that matplotlib draws


def check_save(path: Path, suffixes: Sequence[str], option: str = "--save") -> None:
    """Check, before any work, that an option can write a file.

    Raises:
        UsageError: If the suffix is not in `suffixes`.
        OutputPathError: If the path is a folder or a file of a run, or its folder does not exist.
        UnavailableError: If the file is a picture, and matplotlib is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise UsageError(f"{option} {path}: unknown suffix {quoted(path.suffix)}; choose from {' '.join(suffixes)}")
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise OutputPathError(f"{option} {path}: cannot be created: {why}")
    refuse_part_of_run(path)
    if suffix in PICTURES:
        from attnkit.show.figure import require

        require(suffix[1:], option)


def save(path: Path, content: str | bytes, note: str = "") -> None:
    """Write a file, completely or not at all, and report its path and the note."""
    from attnkit.storage.files import write_output

    refuse_part_of_run(path)
    write_output(path, content)
    console.say(f"wrote {path}{note}")


def save_picture(path: Path, picture: "Picture") -> None:
    """Print the warnings of a picture and write it."""
    for warning in picture.warnings:
        console.warn(warning)
    save(path, picture.data)


def write_json(value: Any, indent: int | None = 2) -> None:
    """Write a JSON document to standard output, on one line if `indent` is None."""
    console.write(json.dumps(value, indent=indent, allow_nan=False) + "\n")


def finite(score: float) -> float | None:
    """Round a number to six decimals; None if it is not finite, since JSON has no such number."""
    return round(score, 6) if math.isfinite(score) else None


def show(content: "RenderableType") -> None:
    """Print to standard output; in a pipe or a file a record is one line, without padding."""
    screen = console.stdout()
    if screen.live:
        screen.print(content)
        return
    if not os.environ.get("COLUMNS"):
        screen.width = PIPE_WIDTH
    with screen.capture() as drawn:
        screen.print(content)
    console.write("\n".join(line.rstrip() for line in drawn.get().split("\n")))


def check_columns(columns: str | None, format: str) -> None:
    """Raise UsageError for --columns with --format json, which prints everything."""
    if columns is not None and format == "json":
        raise UsageError("--columns is for tables; --format json has all columns; remove one of the two")


def choose_columns(tables: Sequence["Table"], columns: str | None, *, add_metrics: bool = False) -> list["Table"]:
    """Return the tables that have any of the columns of --columns (titles or metrics), with these columns only.

    Raises UsageError if no table has a column; `add_metrics`: whether --metrics can add the column of a metric.
    """
    from attnkit.recipe.metrics import METRICS, ROUGE

    if columns is None:
        return [replace(table, hint="--columns NAME,... shows them") for table in tables]
    known = list(dict.fromkeys(name for table in tables for name in table.names()))
    titles = {name.casefold(): [name.casefold()] for name in known}
    for metric, facts in METRICS.items():
        if (title := "-".join(facts.title.split()).casefold()) in titles:
            titles.setdefault(metric.casefold(), [title])
    if parts := [title for name in ROUGE for title in titles.get(name.casefold(), ())]:
        titles.setdefault("rouge", parts)
        known.append("rouge")
    names = ["-".join(name.split()).casefold() for name in columns.split(",")]
    for name in names:
        if name not in titles:
            for metric in METRICS if add_metrics else ():
                if metric.casefold() == name:
                    raise UsageError(f"--columns {metric}: not in this table; add --metrics {metric}")
            raise UsageError(f"--columns {quoted(name)}: {hint(name, known)}")
    chosen = list(dict.fromkeys(title for name in names for title in titles[name]))
    return [table.choose(chosen) for table in tables if {*chosen} & {*map(str.casefold, table.names())}]


def write_tables(tables: Sequence["Table"], format: str) -> None:
    """Write tables to standard output, separated by empty lines."""
    from attnkit.show import table_formats

    render = {
        "markdown": table_formats.markdown,
        "latex": table_formats.latex,
        "csv": table_formats.csv_text,
        "json": table_formats.json_text,
    }
    for i, table in enumerate(tables):
        if i and format != "csv":
            console.write("\n")
        if format == "table":
            show(table)
        else:
            console.write(render[format](table))
