"""Records with named values from JSON lines, JSON documents, CSV, TSV and Parquet, and rows in them.

A .jsonl file has one object per line and is streamed. A .json file may also be one document: an array of objects, or
an object with one such array (`{"version": 1, "data": [...]}`). A .csv file follows RFC 4180: quoted cells may hold
separators, quotes and line breaks; the separator is a comma, or a semicolon if the first line has semicolons and no
comma. A .tsv file has no quotes. The first line names the columns, unless columns are selected by number.

A row has `source` and `target`, or other fields, which the caller selects: by name, by a path such as
`translation.en`, or by language inside `translation`, as in data sets of Hugging Face. It may have `references`, a
list of accepted outputs, and `contexts`, a list of passages with `gold`, the index of the passage with the answer. A
dialogue row may have `persona` and `turns`, lists of strings, instead of `source`. Line breaks inside a string become
spaces and are counted, because outputs and references are written one row per line.
"""

import csv
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnkit.data.formats import MAX_LINE_BYTES, Errors, join_dialogue, read_lines, read_start, read_whole
from attnkit.data.rows import Counts, Row
from attnkit.data.text_form import NormalForm, clean, normal_form
from attnkit.errors import DataError, UnavailableError
from attnkit.text import counted, nearest, quoted

BREAK = re.compile(r"\r\n|[\r\n]")
SURROGATE = re.compile(r"[\ud800-\udfff]")
NESTED = "translation"
"""Field with a text per language in data sets of Hugging Face."""
MISSING = object()

Records = Iterator[tuple[str, dict[str, Any]]]
"""Location of each record, for messages, and its named values."""
CSV_ERRORS = {
    "unexpected end of data": "a quote is not closed",
    "new-line character": "the line contains a carriage return; end lines with a line feed",
}
"""Meanings of errors of `csv`, by the beginning of the message."""


def read_records(path: Path, kind: str, errors: Errors, counts: Counts, *, numbered: bool = False) -> Records:
    """Read the records of a file.

    `kind` is jsonl (also for documents), csv, tsv or parquet; all but Parquet may be compressed. `numbered` names the
    columns of csv and tsv 1, 2, ..., and the first line is a row.

    Raises:
        MissingInputError: The file does not exist.
        DataError: The file is malformed; the message gives the location.
        UnavailableError: pyarrow, which Parquet needs, is not installed.
    """
    if kind in ("csv", "tsv"):
        return _table(path, kind, errors, counts, numbered)
    if kind == "parquet":
        return _parquet(path)
    return (_document if _is_document(path) else _lines)(path, errors, counts)


def _table(path: Path, kind: str, errors: Errors, counts: Counts, numbered: bool) -> Records:
    """Yield the lines of a table below its header."""
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    if kind == "csv":
        start = read_start(path).partition(b"\n")[0]
        options = {"delimiter": ";" if b";" in start and b"," not in start else ",", "strict": True}
    csv.field_size_limit(MAX_LINE_BYTES)
    table = csv.reader((line + "\n" for line in read_lines(path, errors, counts)), **options)
    names: list[str] = []
    while True:
        place = f"{path}:{table.line_num + 1}"
        try:
            cells = next(table, None)
        except csv.Error as error:
            reason = next((plain for start, plain in CSV_ERRORS.items() if str(error).startswith(start)), str(error))
            raise DataError(f"{place}: not {kind.upper()}: {reason}") from error
        if cells is None:
            return
        if not cells:  # an empty line
            continue
        if not names:
            names = [cell.strip() for cell in cells]
            if numbered:
                names = [str(number) for number in range(1, len(cells) + 1)]
            elif duplicate := next((name for name in names if names.count(name) > 1), None):
                raise DataError(f"{place}: two columns have the name {duplicate!r}; rename one column")
            else:
                continue
        if len(cells) != len(names):
            hint = "quote cells that contain a separator" if kind == "csv" else "a cell must not contain tabs"
            found = counted(len(cells), "cell")
            raise DataError(f"{place}: the line has {found}, but the first line has {len(names)}; {hint}")
        yield place, dict(zip(names, cells, strict=True))


def _parquet(path: Path) -> Records:
    """Yield the rows of a Parquet file, read in batches."""
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
    """Parse JSON in a text that begins with line `line` of a file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = error.msg if text.strip() else "the line is empty"
        place = f"{path}:{line + error.lineno - 1}:{error.colno}"
        raise DataError(f"{place}: not JSON: {reason}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}:{line}:1: cannot read the JSON: {error}") from error


def _lines(path: Path, errors: Errors, counts: Counts) -> Records:
    """Yield the object on each line."""
    for number, line in enumerate(read_lines(path, errors, counts), 1):
        if line.startswith("["):
            raise DataError(
                f"{path}:{number}:1: each line must be one JSON object, not a list; rename a file that is one "
                "JSON array to *.json"
            )
        value = _parsed(line, path, number)
        if not isinstance(value, dict):
            raise DataError(f"{path}:{number}:1: each line must be one JSON object, not {kind_of(value)}")
        yield f"{path}:{number}", value


def _is_document(path: Path) -> bool:
    """Return whether a .json file is a document instead of JSON lines: its first line is not a row."""
    if not path.name.removesuffix(".gz").removesuffix(".xz").endswith(".json"):
        return False
    start = read_start(path).lstrip()
    try:
        first = json.loads(start.partition(b"\n")[0])
    except (RecursionError, ValueError):
        return bool(start)
    return not isinstance(first, dict) or bool(_arrays(first))


def _document(path: Path, errors: Errors, counts: Counts) -> Records:
    """Yield the objects of the only array, or an object without arrays."""
    value = _parsed(read_whole(path, errors, counts), path)
    if isinstance(value, dict):
        arrays = _arrays(value)
        if len(arrays) > 1:
            raise DataError(
                f"{path}: has several arrays of objects ({', '.join(map(repr, arrays))}); write the rows of "
                f"one array as JSON lines: jq -c '.{arrays[0]}[]' {path.name} > rows.jsonl"
            )
        value = value[arrays[0]] if arrays else [value]
    if not isinstance(value, list):
        raise DataError(f"{path}: must be a JSON array of objects, not {kind_of(value)}")
    for number, record in enumerate(value, 1):
        if not isinstance(record, dict):
            raise DataError(f"{path}: row {number}: must be a JSON object, not {kind_of(record)}")
        yield f"{path}: row {number}", record


def _arrays(values: dict[str, Any]) -> list[str]:
    """Return the names of the fields that hold arrays of objects."""
    return [key for key, value in values.items() if isinstance(value, list) and value and isinstance(value[0], dict)]


def kind_of(value: object) -> str:
    """Return the JSON name of a value's type."""
    names = {bool: "true or false", str: "a string", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), "a number")


def read_rows(
    path: Path,
    kind: str = "jsonl",
    errors: Errors = "strict",
    counts: Counts | None = None,
    *,
    source: str | None = "source",
    target: str = "target",
    defaults: tuple[str, str] | None = None,
    labels: Sequence[str] = (),
) -> Iterator[Row]:
    """Yield the rows of a file of records; with `source` None, sources are empty.

    Without the target field the first reference is the target; a list in the target field holds references. `defaults`
    are the field names if a recipe gives none: `source` and `target` may then be languages, and a default is read if
    the first row has no such field. With `labels`, a target may be the index of a label.

    Raises:
        MissingInputError: The file does not exist.
        DataError: The file is malformed (file:line:column), or a field is missing or not a string (file:line, or the
            row of a document, and the nearest field).
    """
    counts = Counts() if counts is None else counts
    records = read_records(path, kind, errors, counts, numbered=target.isdecimal())
    for number, (place, values) in enumerate(records):
        fields = _Fields(place, values, kind in ("csv", "tsv"), errors, counts)
        if number == 0 and defaults:
            source, target = fields.names(source, target, defaults, (str, int) if labels else (str,))
        contexts, value = fields.texts("contexts"), fields.get(target)
        references = fields.texts(target if isinstance(value, list) else "references")
        if labels and value not in labels and (index := fields.number(value)) is not None:
            output = labels[fields.within(target, index, len(labels))]
        elif references and (value is MISSING or isinstance(value, list)):
            output = references[0]
        else:
            output = fields.text(target)
        gold = fields.gold(len(contexts)) if contexts else None
        yield Row(fields.source(source) if source else "", output, references, contexts, gold)


def labeled(rows: Iterable[Row], labels: Sequence[str], form: NormalForm, path: Path) -> Iterator[Row]:
    """Yield the rows of a file whose targets are labels. Raises DataError if a target is not a label."""
    known = {clean(normal_form(label, form)): label for label in labels}
    for number, row in enumerate(rows, 1):
        label = known.get(clean(normal_form(row.target, form)))
        if label is None:
            wrong, names = quoted(row.target.strip()), ", ".join(labels)
            raise DataError(f"{path}:{number}: the label {wrong} is not one of data.labels: {names}")
        yield row._replace(target=label)


def texts_of(values: Mapping[str, Any], kinds: tuple[type, ...] = (str,)) -> list[str]:
    """Return the names of the fields with a text, or a value of other `kinds`; nested fields as paths."""
    found = []
    for key, value in values.items():
        if type(value) in kinds:
            found.append(key)
        elif isinstance(value, Mapping):
            found += [f"{key}.{inner}" for inner in texts_of(value, kinds)]
    return found


@dataclass
class _Fields:
    """Fields of one record, checked when read."""

    place: str
    values: dict[str, Any]
    flat: bool
    """Whether all values are texts, as in a table without types."""
    errors: Errors
    counts: Counts

    def get(self, key: str) -> Any:
        """Return the value of a field, given by name or path, or MISSING."""
        if key in self.values:
            return self.values[key]
        value: Any = self.values
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return MISSING
            value = value[part]
        return value

    def names(
        self, source: str | None, target: str, defaults: tuple[str, str], kinds: tuple[type, ...]
    ) -> tuple[str | None, str]:
        """Return the fields of source and target: those in the recipe, otherwise the defaults.

        Raises DataError, which names the keys to set, if the first row has neither.
        """
        names = {"target": target} if source is None else {"source": source, "target": target}
        default = dict(zip(("source", "target"), defaults, strict=True))
        found = {side: self._find(name, default[side]) for side, name in names.items()}
        missing = [side for side, name in found.items() if name is None]
        if not missing:
            return found.get("source"), found["target"] or target
        texts = texts_of(self.values, kinds)
        unused = [name for name in texts if name not in found.values()]
        # prefer fields with letters: an identifier is an unlikely source or target
        unused = [key for key in unused if re.search("[^\\W\\d_]", str(self.get(key)))] or unused
        near = {side: nearest(names[side], unused) or nearest(default[side], unused) for side in missing}
        rest = iter([name for name in unused if name not in near.values()])
        keys = [shlex.quote(f"data.{side}={near[side] or next(rest, '...')}") for side in missing]
        expected = " or ".join(map(repr, dict.fromkeys((names[missing[0]], default[missing[0]]))))
        hint = ", or data.source=1 data.target=2 if columns have no names" * self.flat
        raise DataError(
            f"{self.place}: no field {expected} for the {missing[0]}; the first row has "
            f"{', '.join(map(repr, texts)) or 'no text fields'}: set {' '.join(keys)}{hint}"
        )

    def _find(self, name: str, default: str) -> str | None:
        for key in (name, f"{NESTED}.{name}", default):
            if self.get(key) is not MISSING:
                return key
        substitutes = {"source": ("persona", "turns")}.get(default, ("references",))
        return default if any(key in self.values for key in substitutes) else None

    def source(self, key: str) -> str:
        """Return the input text: the field, or a dialogue joined from `persona` and `turns`."""
        if self.get(key) is MISSING and {"persona", "turns"} & self.values.keys():
            return join_dialogue(self.texts("persona"), self.texts("turns"))
        return self.text(key)

    def text(self, key: str) -> str:
        value = self.get(key)
        if value is MISSING:
            near = nearest(key, self.values)
            hint = f" (did you mean {near!r}?)" if near else ""
            names = ", ".join(map(repr, self.values)) or "none"
            raise DataError(f"{self.place}: no field {key!r}{hint}; fields: {names}")
        return self._clean(key, value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the strings of a field that holds a list; an empty tuple if there is no such field."""
        value = self.get(key)
        if value is MISSING or (self.flat and value == ""):
            return ()
        if self.flat:
            value = [value]
        if not isinstance(value, list):
            raise DataError(f"{self.place}: field {key!r} must be a list of strings, not {kind_of(value)}")
        return tuple(self._clean(f"{key}[{i}]", item) for i, item in enumerate(value))

    def number(self, value: Any) -> int | None:
        """Return an integer, in a table given by digits; None for any other value."""
        if self.flat and isinstance(value, str) and value.isdecimal():
            return int(value)
        return value if type(value) is int else None

    def gold(self, count: int) -> int | None:
        """Return the index of the passage with the answer, below `count`; None if there is none."""
        value = self.get("gold")
        if value is None or value is MISSING or (self.flat and value == ""):
            return None
        if (index := self.number(value)) is None:
            raise DataError(f"{self.place}: field 'gold' must be an index, not {kind_of(value)}")
        return self.within("gold", index, count)

    def within(self, key: str, index: int, count: int) -> int:
        """Return an index if it is in [0, count)."""
        if not 0 <= index < count:
            raise DataError(f"{self.place}: field {key!r} must be from 0 to {count - 1}, got {index}")
        return index

    def _clean(self, key: str, value: object) -> str:
        """Return a string on one line without lone surrogates, and count the repairs."""
        if not isinstance(value, str):
            raise DataError(f"{self.place}: field {key!r} must be a string, not {kind_of(value)}")
        if "\n" in value or "\r" in value:
            value, breaks = BREAK.subn(" ", value)
            self.counts.breaks += breaks
        if not value.isascii() and SURROGATE.search(value):
            if self.errors == "strict":
                raise DataError(
                    f"{self.place}: field {key!r} has a lone surrogate, which is not a character; set "
                    "data.errors=replace to replace and count lone surrogates"
                )
            value, replaced = SURROGATE.subn("\ufffd", value)
            self.counts.replaced += replaced
        return value
