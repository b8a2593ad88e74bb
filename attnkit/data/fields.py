"""Rows from records: which fields hold source, target, references, passages.

A row has `source` and `target`, or other fields, which the caller names: by name, by a path such as
`translation.en`, or by its language inside `translation`, as data sets of Hugging Face have it.  It
may have `references`, a list of accepted outputs, and `contexts`, a list of passages with `gold`,
the index of the one that answers.  A dialogue row may have `persona` and `turns`, lists of strings,
in place of `source`.  Strings hold one line each: line breaks inside become spaces and are counted,
because outputs and references are written a line a row.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnkit.data.dialogues import join_dialogue
from attnkit.data.formats import Errors
from attnkit.data.records import Record, kind_of, read_records
from attnkit.data.rows import Counts, Row
from attnkit.data.text_form import NormalForm, clean, normal_form
from attnkit.errors import DataError
from attnkit.text import nearest, quoted

BREAK = re.compile(r"\r\n|[\r\n]")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
SURROGATE = re.compile(r"[\ud800-\udfff]")
NESTED = "translation"
"""The field in which data sets of Hugging Face have a text by language."""


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

    Without the target field the first reference is the target; a target that is a list holds
    references.  With `usual`, the names of fields
    where a recipe is silent, `source` and `target` may be languages: where the first row has no
    field of that name, the usual one is read.  With `labels` a target may be the number of one.

    Raises:
        MissingInputError: the file is not there.
        DataError: the file is malformed (file:line:column), or a field is missing or is not a
            string (file:line, of a document: row, and the nearest field).
    """
    counts = Counts() if counts is None else counts
    numbered = target.isdecimal()
    for number, record in enumerate(read_records(path, kind, errors, counts, numbered=numbered)):
        fields = _Fields(record, errors, counts)
        if number == 0 and usual:
            source, target = fields.names((source, target), usual, numbers=bool(labels))
        references, contexts = fields.texts("references"), fields.texts("contexts")
        if fields.lists(target):  # answers that count as right
            references = fields.texts(target)
        output = fields.label(target, labels) if labels else None
        if output is None and references and (fields.lists(target) or not fields.has(target)):
            output = references[0]
        gold = fields.index("gold", len(contexts)) if contexts else None
        output = fields.text(target) if output is None else output
        yield Row(fields.source(source) if source else "", output, references, contexts, gold)


def labelled(
    rows: Iterable[Row], labels: Sequence[str], form: NormalForm, path: Path
) -> Iterator[Row]:
    """The rows of a file, whose targets are labels where there are some.

    Raises DataError where one is another text.
    """
    known = {clean(normal_form(label, form)): label for label in labels}
    for number, row in enumerate(rows, 1):
        if known:
            label = known.get(clean(normal_form(row.target, form)))
            if label is None:
                wrong, names = quoted(row.target.strip()), ", ".join(labels)
                raise DataError(
                    f"{path}:{number}: the label {wrong} is not one of data.labels: {names}"
                )
            row = row._replace(target=label)
        yield row


def texts_of(values: Mapping[str, Any], numbers: bool = False) -> list[str]:
    """Names of the fields with a text (or with `numbers` a whole number), paths included."""
    found = []
    for key, value in values.items():
        if isinstance(value, str) or (numbers and type(value) is int):
            found.append(key)
        elif isinstance(value, Mapping):
            found += [f"{key}.{inner}" for inner in texts_of(value, numbers)]
    return found


class _Fields:
    """The fields of one record, each checked when it is read."""

    def __init__(self, record: Record, errors: Errors, counts: Counts) -> None:
        self.place, self.values, self.escaped, self.flat = record
        self.errors, self.counts = errors, counts

    def has(self, key: str) -> bool:
        """Whether there is a field of this name, or at this path."""
        return self._value(key, self) is not self

    def lists(self, key: str) -> bool:
        """Whether a field holds a list."""
        return isinstance(self._value(key), list)

    def _value(self, key: str, default: Any = None) -> Any:
        if key in self.values:
            return self.values[key]
        value: Any = self.values
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value

    def names(
        self, words: tuple[str | None, str], usual: tuple[str, str], *, numbers: bool
    ) -> tuple[str | None, str]:
        """The fields of source and target: those that a recipe names, else the usual ones.

        With `numbers` a target may be one.  Raises DataError where there are none, and names the
        keys to set.
        """
        source = words[0] and self._find(words[0], usual[0], {"persona", "turns"})
        target = self._find(words[1], usual[1], {"references"})
        if (source is not None or words[0] is None) and target is not None:
            return source, target
        texts = texts_of(self.values, numbers)
        side = 1 if target is None and (source or words[0] is None) else 0
        name, word = ("source", "target")[side], str(words[side])
        tried = f"{word!r} or {usual[side]!r}" if word != usual[side] else repr(word)
        text = f"{self.place}: no field {tried} for the {name}"
        free = [key for key in texts if key not in (source, target)]
        if not free:
            raise DataError(
                f'{text}, nor any other text; write rows such as {{"{usual[side]}": "..."}}'
            )
        # an identifier is hardly what is meant
        free = [key for key in free if re.search("[^\\W\\d_]", str(self._value(key)))] or free
        keys = []
        sentences = any(re.search(r"[.,!?]( |$)", str(key)) for key in free)
        for at, known in enumerate((source, target)):
            if known is None and words[at] is not None and free:
                options = (str(words[at]), usual[at])
                near = next(filter(None, (nearest(one, free) for one in options)), None)
                near = near or free[0]
                free.remove(near)
                keys.append(shlex.quote(f"data.{('source', 'target')[at]}={near}"))
        ways = [" ".join(keys)]
        if self.flat:
            ways.append("data.source=1 data.target=2 where columns have no names")
        shown = ", ".join(map(repr, texts))
        order = ways[::-1] if sentences else ways  # no names, but the first row
        raise DataError(f"{text}; the first row has {shown}: set {', or '.join(order)}")

    def _find(self, word: str, usual: str, instead: set[str]) -> str | None:
        for name in (word, f"{NESTED}.{word}", usual):
            if self.has(name):
                return name
        return usual if instead & self.values.keys() else None

    def source(self, key: str) -> str:
        """The input text: the field, or a dialogue joined from `persona` and `turns`."""
        there = key in self.values or self.has(key)
        if there or not {"persona", "turns"} & self.values.keys():
            return self.text(key)
        return join_dialogue(self.texts("persona"), self.texts("turns"))

    def text(self, key: str) -> str:
        """The text of a field."""
        value = self.values[key] if key in self.values else self._value(key, self)
        if value is self:
            near = nearest(key, self.values)
            hint = f" (did you mean {near!r}?)" if near else ""
            names = ", ".join(map(repr, self.values)) or "none"
            raise DataError(f"{self.place}: no field {key!r}{hint}; fields here: {names}")
        return self._clean(key, value)

    def label(self, key: str, labels: Sequence[str]) -> str | None:
        """The label whose number the field holds; None where it holds something else."""
        value = self._value(key)
        if self.flat and isinstance(value, str) and value not in labels and value.isdecimal():
            self.values[key] = value = int(value)
        if type(value) is not int:
            return None
        return labels[self.index(key, len(labels)) or 0]

    def texts(self, key: str) -> tuple[str, ...]:
        """The strings of one field that holds a list; none where there is no such field."""
        if (value := self._value(key, self)) is self:
            return ()
        if self.flat and isinstance(value, str):
            value = [value] if value else []
        if not isinstance(value, list):
            raise DataError(
                f"{self.place}: field {key!r} must be a list of strings, not {kind_of(value)}"
            )
        return tuple(self._clean(f"{key}[{i}]", item) for i, item in enumerate(value))

    def index(self, key: str, count: int) -> int | None:
        """An index below `count`, or None where there is none."""
        value = self._value(key)
        if self.flat and isinstance(value, str):
            value = int(value) if value.isdecimal() else value or None
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise DataError(f"{self.place}: field {key!r} must be an index, not {kind_of(value)}")
        if not 0 <= value < count:
            raise DataError(
                f"{self.place}: field {key!r} must be from 0 to {count - 1}, got {value}"
            )
        return value

    def _clean(self, key: str, value: object) -> str:
        """One line of text without halves of characters."""
        if not isinstance(value, str):
            raise DataError(f"{self.place}: field {key!r} must be a string, not {kind_of(value)}")
        if not self.escaped:
            return value
        value, breaks = BREAK.subn(" ", value)
        self.counts.breaks += breaks
        if self.flat:  # the rest was seen to when the file was read
            return value
        self.counts.control += len(CONTROL.findall(value))
        if SURROGATE.search(value):
            if self.errors == "strict":
                raise DataError(
                    f"{self.place}: field {key!r} has half a surrogate pair, which is no "
                    "character; set data.errors=replace to have it replaced and counted"
                )
            value, replaced = SURROGATE.subn("\ufffd", value)
            self.counts.replaced += replaced
        return value
