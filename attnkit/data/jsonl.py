"""Readers of rows in JSON: lines, one document, and dialogues in the format of ParlAI.

A .jsonl file has an object a line and is streamed.  A .json file may also be one document: an array
of objects, or an object with one such array (`{"version": 1, "data": [...]}`).

A row has `source` and `target` (or other names, given by the caller) and may have
`references`, a list of accepted outputs, and `contexts`, a list of passages with `gold`, the index
of the one that answers. A dialogue row may have `persona` and `turns`, lists of
strings, in place of `source`.  Strings hold one line each: line breaks inside become spaces and
are counted, because outputs and references are written a line a row.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnkit.data.formats import Errors, read_lines, read_start, read_whole
from attnkit.data.rows import Counts, Row
from attnkit.errors import DataError
from attnkit.text import nearest

PERSONA_END = " __eop__ "
TURN_END = " __eot__ "
HISTORY = 5
"""How many earlier turns a row has in ParlAI's format."""

NAME_IT = "; if the file is one JSON array, give it a name that ends in .json"
"""What to do with an array in a file of JSON lines."""

BREAK = re.compile(r"\r\n|[\r\n]")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
SURROGATE = re.compile(r"[\ud800-\udfff]")


def read_jsonl(
    path: Path,
    errors: Errors = "strict",
    counts: Counts | None = None,
    *,
    source: str | None = "source",
    target: str = "target",
    usual: tuple[str, str] | None = None,
    labels: Sequence[str] = (),
) -> Iterator[Row]:
    """Rows of a JSONL or JSON file, gzip or not; `source` None leaves the source empty.

    Without the target field the first reference is the target.  With `usual`, the names of fields
    where a recipe is silent, `source` and `target` may be languages: where the first row has no
    field of that name, the usual one is read.  With `labels` a target may be the number of one.

    Raises:
        MissingInputError: the file is not there.
        DataError: a line is not a JSON object (file:line:column), or a field is missing or is
            not a string (file:line, of a document: row, and the nearest field).
    """
    counts = Counts() if counts is None else counts
    records = _document if _is_document(path) else _lines
    for number, record in enumerate(records(path, errors, counts)):
        fields = _Fields(record, errors, counts)
        if number == 0 and usual:
            source = source and fields.name("source", source, usual[0])
            target = fields.name("target", target, usual[1], source, numbers=bool(labels))
        references, contexts = fields.texts("references"), fields.texts("contexts")
        first = references[0] if references and target not in fields.values else None
        if labels and type(fields.values.get(target)) is int:
            first = labels[fields.index(target, len(labels)) or 0]
        output = fields.text(target) if first is None else first
        gold = fields.index("gold", len(contexts)) if contexts else None
        yield Row(fields.source(source) if source else "", output, references, contexts, gold)


def join_dialogue(persona: Sequence[str], turns: Sequence[str]) -> str:
    """One source text: persona sentences __eop__ turns joined by __eot__, oldest first."""
    history = TURN_END.join(turns)
    return (" ".join(persona) + PERSONA_END + history).strip() if persona else history


def read_parlai(
    path: Path, errors: Errors = "strict", counts: Counts | None = None
) -> Iterator[Row]:
    """Rows of a PersonaChat file of ParlAI: each reply of the speaker with the persona.

    Lines are `N your persona: text` or `N turn TAB reply TAB ...`; N is 1 where a dialogue starts.

    Raises:
        MissingInputError: the file is not there.
        DataError: a line that is neither (file:line).
    """
    persona: list[str] = []
    turns: list[str] = []
    for position, line in enumerate(read_lines(path, errors, counts), 1):
        number, _, rest = line.partition(" ")
        if number == "1":
            persona, turns = [], []
        turn, *replies = rest.split("\t")
        if turn.startswith("your persona: "):
            persona.append(turn.removeprefix("your persona: "))
            continue
        if not number.isdecimal() or not replies:
            raise DataError(f"{path}:{position}: must be a number, a turn, a tab and a reply")
        if turn != "__SILENCE__":
            turns.append(turn)
        yield Row(join_dialogue(persona, turns[-HISTORY:]), replies[0])
        turns.append(replies[0])


class _Record(NamedTuple):
    """One JSON object."""

    place: str
    """Where it is, for messages."""
    values: dict[str, Any]
    escaped: bool
    """Only an escape can bring a line break, a control character or a lone surrogate."""


def _lines(path: Path, errors: Errors, counts: Counts) -> Iterator[_Record]:
    """An object a line."""
    for number, line in enumerate(read_lines(path, errors, counts), 1):
        place = f"{path}:{number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            what = "the line is empty" if not line.strip() else error.msg
            hint = NAME_IT if number == 1 and line.startswith("[") else ""
            raise DataError(f"{place}:{error.colno}: not JSON: {what}{hint}") from error
        except (RecursionError, ValueError) as error:
            raise DataError(f"{place}:1: not JSON that can be read: {error}") from error
        if not isinstance(value, dict):
            hint = NAME_IT if number == 1 and isinstance(value, list) else ""
            raise DataError(
                f"{place}:1: each line must be one JSON object, not {_kind(value)}{hint}"
            )
        yield _Record(place, value, "\\" in line)


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


def _document(path: Path, errors: Errors, counts: Counts) -> Iterator[_Record]:
    """The objects of one array; of an object without one, itself."""
    text = read_whole(path, errors, counts)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno}:{error.colno}"
        raise DataError(f"{place}: not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}: not JSON that can be read: {error}") from error
    if isinstance(value, dict):
        arrays = _arrays(value)
        if len(arrays) > 1:
            raise DataError(
                f"{path}: has several arrays of objects ({', '.join(map(repr, arrays))}); write the"
                f" rows of one as JSON lines: jq -c '.{arrays[0]}[]' {path.name} > rows.jsonl"
            )
        value = value[arrays[0]] if arrays else [value]
    if not isinstance(value, list):
        raise DataError(f"{path}: must be a JSON array of objects, not {_kind(value)}")
    for number, one in enumerate(value, 1):
        if not isinstance(one, dict):
            raise DataError(f"{path}: row {number}: must be a JSON object, not {_kind(one)}")
        yield _Record(f"{path}: row {number}", one, "\\" in text)


def _arrays(values: dict[str, Any]) -> list[str]:
    """The fields that hold arrays of objects."""
    return [
        key
        for key, value in values.items()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    ]


class _Fields:
    """The fields of one JSON object, each checked when it is read."""

    def __init__(self, record: _Record, errors: Errors, counts: Counts) -> None:
        self.place, self.values, self.escaped = record
        self.errors, self.counts = errors, counts

    def name(
        self, side: str, word: str, usual: str, taken: str | None = None, *, numbers: bool = False
    ) -> str:
        """The field of a side: the one that a recipe names, else the usual one.

        A message proposes other fields with text, or with `numbers` whole numbers, but `taken`.

        Raises DataError where there is neither, and names the key to set.
        """
        instead = {"persona", "turns"} if side == "source" else {"references"}
        if word in self.values:
            return word
        if usual in self.values or instead & self.values.keys():
            return usual
        texts = [
            key
            for key, value in self.values.items()
            if isinstance(value, str) or (numbers and type(value) is int)
        ]
        tried = f"{word!r} or {usual!r}" if word != usual else repr(word)
        text = f"{self.place}: no field {tried} for the {side}"
        if not texts:
            raise DataError(f'{text}, nor any other text; write rows such as {{"{usual}": "..."}}')
        free = [key for key in texts if key != taken] or texts
        near = nearest(word, free) or nearest(usual, free) or free[0 if side == "source" else -1]
        names = ", ".join(map(repr, texts))
        raise DataError(f"{text}; the first row has {names}: set data.{side}={near}")

    def source(self, key: str) -> str:
        """The input text: the field, or a dialogue joined from `persona` and `turns`."""
        if key in self.values or not {"persona", "turns"} & self.values.keys():
            return self.text(key)
        return join_dialogue(self.texts("persona"), self.texts("turns"))

    def text(self, key: str) -> str:
        if key not in self.values:
            near = nearest(key, self.values)
            hint = f" (did you mean {near!r}?)" if near else ""
            names = ", ".join(map(repr, self.values)) or "none"
            raise DataError(f"{self.place}: no field {key!r}{hint}; fields here: {names}")
        return self._clean(key, self.values[key])

    def texts(self, key: str) -> tuple[str, ...]:
        """The strings of one field that holds a list; none where there is no such field."""
        value = self.values.get(key, [])
        if not isinstance(value, list):
            raise DataError(
                f"{self.place}: field {key!r} must be a list of strings, not {_kind(value)}"
            )
        return tuple(self._clean(f"{key}[{i}]", item) for i, item in enumerate(value))

    def index(self, key: str, count: int) -> int | None:
        """An index below `count`, or None where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise DataError(f"{self.place}: field {key!r} must be an index, not {_kind(value)}")
        if not 0 <= value < count:
            raise DataError(
                f"{self.place}: field {key!r} must be from 0 to {count - 1}, got {value}"
            )
        return value

    def _clean(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            raise DataError(f"{self.place}: field {key!r} must be a string, not {_kind(value)}")
        if not self.escaped:
            return value
        value, breaks = BREAK.subn(" ", value)
        self.counts.breaks += breaks
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


def _kind(value: object) -> str:
    """JSON's name for a kind of value."""
    names = {bool: "true or false", str: "a string", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), "a number")
