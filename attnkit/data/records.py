"""Records: named values from JSON lines, JSON documents, CSV, TSV and Parquet.

A .jsonl file has an object a line and is streamed.  A .json file may also be one document: an array of objects, or an
object with one such array (`{"version": 1, "data": [...]}`).  A .csv file is as RFC 4180 says: quoted cells may hold
separators, quotes and line breaks; the separator is a comma, or a semicolon where the first line has semicolons and no
comma.  A .tsv file has no quotes.  The first line names the columns, unless columns are asked for by their numbers.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnkit.data.formats import LONGEST, Errors, read_lines, read_start, read_whole
from attnkit.data.rows import Counts
from attnkit.errors import DataError, UnavailableError

Records = Iterator[tuple[str, dict[str, Any]]]
"""Where each record is, for messages, and its named values."""
CSV_ERRORS = {
    "unexpected end of data": "a quote is not closed",
    "new-line character": "a carriage return stands inside the line; end lines by a line feed",
}
"""How an error of `csv` begins -> what it means."""


def read_records(path: Path, kind: str, errors: Errors, counts: Counts, *, numbered: bool = False) -> Records:
    """The records of a file.

    Args:
        path: the file; of text formats also compressed.
        kind: jsonl (which a document may be as well), csv, tsv or parquet.
        errors: what to do about malformed UTF-8.
        counts: of repairs.
        numbered: columns are named 1, 2, ... and the first line is a row (csv and tsv).

    Raises:
        MissingInputError: the file is not there.
        DataError: it is malformed; says where.
        UnavailableError: Parquet needs pyarrow.
    """
    if kind in ("csv", "tsv"):
        return _table(path, kind, errors, counts, numbered)
    if kind == "parquet":
        return _parquet(path)
    return (_document if _is_document(path) else _lines)(path, errors, counts)


def _table(path: Path, kind: str, errors: Errors, counts: Counts, numbered: bool) -> Records:
    """The lines of a table below its header."""
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    if kind == "csv":
        start = read_start(path).partition(b"\n")[0]
        options = {"delimiter": ";" if b";" in start and b"," not in start else ",", "strict": True}
    csv.field_size_limit(LONGEST)
    table = csv.reader((line + "\n" for line in read_lines(path, errors, counts)), **options)
    names: list[str] = []
    while True:
        place = f"{path}:{table.line_num + 1}"
        try:
            cells = next(table, None)
        except csv.Error as error:
            what = next((plain for start, plain in CSV_ERRORS.items() if str(error).startswith(start)), str(error))
            raise DataError(f"{place}: not {kind.upper()}: {what}") from error
        if cells is None:
            return
        if not cells:  # an empty line
            continue
        if not names:
            names = [cell.strip() for cell in cells]
            if numbered:
                names = [str(number) for number in range(1, len(cells) + 1)]
            elif twice := next((name for name in names if names.count(name) > 1), None):
                raise DataError(f"{place}: two columns are called {twice!r}; rename one")
            else:
                continue
        if len(cells) != len(names):
            hint = "quote a cell that has a separator in it" if kind == "csv" else "remove the tabs"
            raise DataError(f"{place}: {len(cells)} cells where the first line has {len(names)}; {hint}")
        yield place, dict(zip(names, cells, strict=True))


def _parquet(path: Path) -> Records:
    """The rows of a Parquet file, a few thousand at a time."""
    try:
        from pyarrow import ArrowException  # type: ignore[import-untyped, unused-ignore]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise UnavailableError(f"{path}: Parquet needs pyarrow: pip install 'attnkit[parquet]'") from error
    number = 0
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(4096):
                for values in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", values
    except (ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from error


def _parsed(text: str, path: Path, line: int = 1) -> Any:
    """The JSON value in a text that begins with a line of a file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        what = error.msg if text.strip() else "the line is empty"
        place = f"{path}:{line + error.lineno - 1}:{error.colno}"
        raise DataError(f"{place}: not JSON: {what}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}:{line}:1: not JSON that can be read: {error}") from error


def _lines(path: Path, errors: Errors, counts: Counts) -> Records:
    """An object a line."""
    for number, line in enumerate(read_lines(path, errors, counts), 1):
        if line.startswith("["):
            raise DataError(
                f"{path}:{number}:1: each line must be one JSON object, not a list; if the file is "
                "one JSON array, give it a name that ends in .json"
            )
        value = _parsed(line, path, number)
        if not isinstance(value, dict):
            raise DataError(f"{path}:{number}:1: each line must be one JSON object, not {kind_of(value)}")
        yield f"{path}:{number}", value


def _is_document(path: Path) -> bool:
    """Whether a file named .json is not JSON lines: its first line is no row."""
    if not path.name.removesuffix(".gz").removesuffix(".xz").endswith(".json"):
        return False
    start = read_start(path).lstrip()
    try:
        first = json.loads(start.partition(b"\n")[0])
    except (RecursionError, ValueError):
        return bool(start)
    return not isinstance(first, dict) or bool(_arrays(first))


def _document(path: Path, errors: Errors, counts: Counts) -> Records:
    """The objects of one array; of an object without one, itself."""
    value = _parsed(read_whole(path, errors, counts), path)
    if isinstance(value, dict):
        arrays = _arrays(value)
        if len(arrays) > 1:
            raise DataError(
                f"{path}: has several arrays of objects ({', '.join(map(repr, arrays))}); write the"
                f" rows of one as JSON lines: jq -c '.{arrays[0]}[]' {path.name} > rows.jsonl"
            )
        value = value[arrays[0]] if arrays else [value]
    if not isinstance(value, list):
        raise DataError(f"{path}: must be a JSON array of objects, not {kind_of(value)}")
    for number, one in enumerate(value, 1):
        if not isinstance(one, dict):
            raise DataError(f"{path}: row {number}: must be a JSON object, not {kind_of(one)}")
        yield f"{path}: row {number}", one


def _arrays(values: dict[str, Any]) -> list[str]:
    """The fields that hold arrays of objects."""
    lists = {key: value for key, value in values.items() if isinstance(value, list)}
    return [key for key, value in lists.items() if value and isinstance(value[0], dict)]


def kind_of(value: object) -> str:
    """JSON's name for a kind of value."""
    names = {bool: "true or false", str: "a string", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), "a number")
