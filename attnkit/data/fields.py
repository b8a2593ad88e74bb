"""Rows from records: which fields hold source, target, references, passages.

A row has `source` and `target`, or other fields, which the caller names: by name, by a path such as `translation.en`,
or by its language inside `translation`, as data sets of Hugging Face have it.  It may have `references`, a list of
accepted outputs, and `contexts`, a list of passages with `gold`, the index of the one that answers.  A dialogue row
may have `persona` and `turns`, lists of strings, in place of `source`.  Strings hold one line each: line breaks inside
become spaces and are counted, because outputs and references are written a line a row.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnkit.data.formats import Errors, join_dialogue
from attnkit.data.records import kind_of, read_records
from attnkit.data.rows import Counts, Row
from attnkit.data.text_form import NormalForm, clean, normal_form
from attnkit.errors import DataError
from attnkit.text import nearest, quoted

BREAK = re.compile(r"\r\n|[\r\n]")
SURROGATE = re.compile(r"[\ud800-\udfff]")
NESTED = "translation"
"""The field in which data sets of Hugging Face have a text by language."""
MISSING = object()


def read_rows(
    path: Path,
    kind: str = "jsonl",
    errors: Errors = "strict",
    counts: Counts | None = None,
    *,
    source: str | None = "source",
    target: str = "target",
    usual: tuple[str, str] | None = None,
    labels: Sequence[str] = (),
) -> Iterator[Row]:
    """Rows of a file of records; `source` None leaves the source empty.

    Without the target field the first reference is the target; a target that is a list holds references.  With
    `usual`, the names of fields where a recipe is silent, `source` and `target` may be languages: where the first row
    has no field of that name, the usual one is read.  With `labels` a target may be the number of one.

    Raises MissingInputError: the file is not there; DataError: the file is malformed (file:line:column), or a field is
    missing or is not a string (file:line, of a document: row, and the nearest field).
    """
    counts = Counts() if counts is None else counts
    records = read_records(path, kind, errors, counts, numbered=target.isdecimal())
    for number, (place, values) in enumerate(records):
        fields = _Fields(place, values, kind in ("csv", "tsv"), errors, counts)
        if number == 0 and usual:
            source, target = fields.names(source, target, usual, (str, int) if labels else (str,))
        contexts, given = fields.texts("contexts"), fields.get(target)
        references = fields.texts(target if isinstance(given, list) else "references")
        if labels and given not in labels and (at := fields.number(given)) is not None:
            output = labels[fields.within(target, at, len(labels))]
        elif references and (given is MISSING or isinstance(given, list)):
            output = references[0]
        else:
            output = fields.text(target)
        gold = fields.gold(len(contexts)) if contexts else None
        yield Row(fields.source(source) if source else "", output, references, contexts, gold)


def labelled(rows: Iterable[Row], labels: Sequence[str], form: NormalForm, path: Path) -> Iterator[Row]:
    """The rows of a file, whose targets are labels.

    Raises DataError where one is another text.
    """
    known = {clean(normal_form(label, form)): label for label in labels}
    for number, row in enumerate(rows, 1):
        label = known.get(clean(normal_form(row.target, form)))
        if label is None:
            wrong, names = quoted(row.target.strip()), ", ".join(labels)
            raise DataError(f"{path}:{number}: the label {wrong} is not one of data.labels: {names}")
        yield row._replace(target=label)


def texts_of(values: Mapping[str, Any], kinds: tuple[type, ...] = (str,)) -> list[str]:
    """Names of the fields with a text, or a value of other `kinds`, paths included."""
    found = []
    for key, value in values.items():
        if type(value) in kinds:
            found.append(key)
        elif isinstance(value, Mapping):
            found += [f"{key}.{inner}" for inner in texts_of(value, kinds)]
    return found


@dataclass
class _Fields:
    """The fields of one record, each checked when it is read."""

    place: str
    values: dict[str, Any]
    flat: bool
    """Whether all values are texts, as in a table without types."""
    errors: Errors
    counts: Counts

    def get(self, key: str) -> Any:
        """What a field of this name, or at this path, holds; else MISSING."""
        if key in self.values:
            return self.values[key]
        value: Any = self.values
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return MISSING
            value = value[part]
        return value

    def names(
        self, source: str | None, target: str, usual: tuple[str, str], kinds: tuple[type, ...]
    ) -> tuple[str | None, str]:
        """The fields of source and target: those that a recipe names, else the usual ones.

        Raises DataError where there are none, and names the keys to set.
        """
        words = {"target": target} if source is None else {"source": source, "target": target}
        usually = dict(zip(("source", "target"), usual, strict=True))
        found = {side: self._find(word, usually[side]) for side, word in words.items()}
        lacking = [side for side, name in found.items() if name is None]
        if not lacking:
            return found.get("source"), found["target"] or target
        texts = texts_of(self.values, kinds)
        free = [name for name in texts if name not in found.values()]
        # an identifier is hardly what is meant
        free = [key for key in free if re.search("[^\\W\\d_]", str(self.get(key)))] or free
        near = {side: nearest(words[side], free) or nearest(usually[side], free) for side in lacking}
        rest = iter([name for name in free if name not in near.values()])
        keys = [shlex.quote(f"data.{side}={near[side] or next(rest, '...')}") for side in lacking]
        tried = " or ".join(map(repr, dict.fromkeys((words[lacking[0]], usually[lacking[0]]))))
        hint = ", or data.source=1 data.target=2 where columns have no names" * self.flat
        raise DataError(
            f"{self.place}: no field {tried} for the {lacking[0]}; the first row has "
            f"{', '.join(map(repr, texts)) or 'no texts'}: set {' '.join(keys)}{hint}"
        )

    def _find(self, word: str, usual: str) -> str | None:
        for name in (word, f"{NESTED}.{word}", usual):
            if self.get(name) is not MISSING:
                return name
        instead = {"source": ("persona", "turns")}.get(usual, ("references",))
        return usual if any(name in self.values for name in instead) else None

    def source(self, key: str) -> str:
        """The input text: the field, or a dialogue joined from `persona` and `turns`."""
        if self.get(key) is MISSING and {"persona", "turns"} & self.values.keys():
            return join_dialogue(self.texts("persona"), self.texts("turns"))
        return self.text(key)

    def text(self, key: str) -> str:
        """The text of a field."""
        value = self.get(key)
        if value is MISSING:
            near = nearest(key, self.values)
            hint = f" (did you mean {near!r}?)" if near else ""
            names = ", ".join(map(repr, self.values)) or "none"
            raise DataError(f"{self.place}: no field {key!r}{hint}; fields here: {names}")
        return self._clean(key, value)

    def texts(self, key: str) -> tuple[str, ...]:
        """The strings of one field that holds a list; none where there is no such field."""
        value = self.get(key)
        if value is MISSING or (self.flat and value == ""):
            return ()
        if self.flat:
            value = [value]
        if not isinstance(value, list):
            raise DataError(f"{self.place}: field {key!r} must be a list of strings, not {kind_of(value)}")
        return tuple(self._clean(f"{key}[{i}]", item) for i, item in enumerate(value))

    def number(self, value: Any) -> int | None:
        """A whole number, which a table has in digits; None where it is something else."""
        if self.flat and isinstance(value, str) and value.isdecimal():
            return int(value)
        return value if type(value) is int else None

    def gold(self, count: int) -> int | None:
        """The index of the passage that answers, below `count`; None where there is none."""
        value = self.get("gold")
        if value is None or value is MISSING or (self.flat and value == ""):
            return None
        if (index := self.number(value)) is None:
            raise DataError(f"{self.place}: field 'gold' must be an index, not {kind_of(value)}")
        return self.within("gold", index, count)

    def within(self, key: str, index: int, count: int) -> int:
        """The index, if it is one of so many."""
        if not 0 <= index < count:
            raise DataError(f"{self.place}: field {key!r} must be from 0 to {count - 1}, got {index}")
        return index

    def _clean(self, key: str, value: object) -> str:
        """One line of text without halves of characters."""
        if not isinstance(value, str):
            raise DataError(f"{self.place}: field {key!r} must be a string, not {kind_of(value)}")
        if "\n" in value or "\r" in value:
            value, breaks = BREAK.subn(" ", value)
            self.counts.breaks += breaks
        if not value.isascii() and SURROGATE.search(value):
            if self.errors == "strict":
                raise DataError(
                    f"{self.place}: field {key!r} has half a surrogate pair, which is no "
                    "character; set data.errors=replace to have it replaced and counted"
                )
            value, replaced = SURROGATE.subn("\ufffd", value)
            self.counts.replaced += replaced
        return value
