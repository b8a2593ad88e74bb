"""YAML as a tree of nodes with positions; every scalar stays the text that was written.

Only what a recipe needs is read: one document of mappings, lists and scalars.  Tags, anchors,
aliases, duplicate keys, deep nesting and large files are refused.  The tree is built from parser
events, so that deep nesting ends before it can exhaust the interpreter's stack.
"""

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from attnkit.errors import MissingInputError
from attnkit.recipe.issues import COMMAND_LINE, Position, refuse
from attnkit.text import quoted

LARGEST = 256 * 1024
"""Bytes of a recipe file, at most."""
DEEPEST = 32
"""Levels of nesting, at most."""
MOST_NODES = 10_000
"""Keys and values of a recipe, at most."""

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value as text; `plain` means that it was written without quotes."""

    place: Position
    text: str
    plain: bool = True

    @property
    def null(self) -> bool:
        return self.plain and self.text in _NULLS


@dataclass(frozen=True, slots=True)
class Sequence:
    place: Position
    items: list["Node"]


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys, each with its own position, and their values."""

    place: Position
    fields: dict[str, tuple[Position, "Node"]]


Node: TypeAlias = Scalar | Sequence | Mapping


def is_null(node: Node) -> bool:
    """Whether a key has no value, or null."""
    return isinstance(node, Scalar) and node.null


def read_file(path: Path, content: bytes | None = None) -> Mapping:
    """The tree of a recipe file, whose content may have been read already.

    Raises MissingInputError when it cannot be read, RecipeError when it is not acceptable YAML.
    """
    name = str(path)
    text = read_text(path) if content is None else _text(content, name)
    node = compose(text, name)
    if node is None:
        refuse(Position(name, 1, 1), "the file is empty; a recipe needs at least `task` and `data`")
    if not isinstance(node, Mapping):
        refuse(node.place, "a recipe must be a mapping of keys to values, such as `task: dialogue`")
    return node


def read_text(path: Path) -> str:
    """The text of a recipe file, which may be wrong in every other way.

    Raises MissingInputError when it cannot be read, RecipeError when it is not text or too large.
    """
    shown = quoted(str(path), 200)
    try:
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind):
            what = "a folder" if stat.S_ISDIR(kind) else "not a regular file"
            raise MissingInputError(f"recipe {shown} is {what}; name a .yaml file")
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise MissingInputError(f"recipe {shown} cannot be read: {error.strerror}") from None
    except ValueError:
        raise MissingInputError(f"recipe {shown} cannot be read: not a file name") from None
    return _text(raw, str(path))


def _text(raw: bytes, name: str) -> str:
    """The content of a recipe file as text."""
    if len(raw) > LARGEST:
        refuse(Position(name, 1, 1), f"the file is larger than {LARGEST // 1024} kB; not a recipe")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _place_after(raw[: error.start].decode("utf-8-sig", "replace"), name)
        refuse(place, f"byte 0x{raw[error.start]:02x} is not UTF-8; save it as UTF-8")
    for position, char in enumerate(text):
        if not (char.isprintable() or char in "\t\n\r\x85\xa0\ufeff" or ord(char) > 0x9F):
            place = _place_after(text[:position], name)
            refuse(place, f"control character {quoted(char)} is not allowed; delete it")
    return text


def read_value(text: str) -> Node:
    """The value of KEY=VALUE: YAML where it starts like a list, mapping or quote, else text."""
    text = text.strip()
    if not text.startswith(("[", "{", '"', "'")):
        return Scalar(COMMAND_LINE, text)
    if any("\ud800" <= char <= "\udfff" for char in text):
        refuse(COMMAND_LINE, f"{quoted(text)} has bytes that are not UTF-8; write it as UTF-8")
    node = compose(text, COMMAND_LINE.source, inside=COMMAND_LINE)
    assert node is not None
    return node


def _place_after(text: str, name: str) -> Position:
    return Position(name, text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1)


def compose(text: str, name: str, inside: Position | None = None) -> Node | None:
    """The tree of a YAML text, None for an empty one.

    `inside` replaces all positions.  Raises RecipeError.
    """
    reader = _Reader(text, name, inside)
    root = None
    try:
        for event in reader.events:
            if isinstance(event, yaml.DocumentStartEvent) and root is not None:
                refuse(reader.place(event.start_mark), "a second document; a file is one recipe")
            if isinstance(event, yaml.NodeEvent):
                root = reader.node(event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "malformed"
        context = getattr(error, "context", None)
        words = " ".join(f"{context}: {problem}".split() if context else str(problem).split())
        place = reader.place(mark) if mark else inside or Position(name, 1, 1)
        refuse(place, f"not valid YAML: {_name(words, 160)}; check indent, quotes and brackets")
    return root


class _Reader:
    """Turns parser events into nodes."""

    def __init__(self, text: str, name: str, inside: Position | None) -> None:
        self.events = yaml.parse(text, Loader=_LOADER)
        self._name, self._inside, self._nodes = name, inside, 0

    def place(self, mark: Any) -> Position:
        """The position of a mark of the parser."""
        return self._inside or Position(self._name, mark.line + 1, mark.column + 1)

    def node(self, event: Any, depth: int = 0) -> Node:
        """The node that begins with an event.  Raises RecipeError for what is not allowed."""
        place = self.place(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            refuse(place, f"alias *{_name(str(event.anchor))}: {_WRITE_OUT}")
        if event.anchor is not None:
            refuse(place, f"anchor &{_name(event.anchor)}: {_WRITE_OUT}")
        if event.tag is not None:
            refuse(place, f"tag {_name(event.tag)}: tags are not allowed; write the value alone")
        self._nodes += 1
        if self._nodes > MOST_NODES:
            refuse(place, f"more than {MOST_NODES} keys and values; not a recipe")
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(place, event.value, not event.style)
        if depth == DEEPEST:
            refuse(place, f"nested deeper than {DEEPEST} levels; not a recipe")
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
                items.append(self.node(event, depth + 1))
            return Sequence(place, items)
        fields: dict[str, tuple[Position, Node]] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if isinstance(event, yaml.CollectionStartEvent):
                refuse(self.place(event.start_mark), "a key must be text, not a list or mapping")
            key = self.node(event, depth + 1)
            assert isinstance(key, Scalar)
            if key.text in fields:
                text = f"key {quoted(key.text)} is given twice, first at {fields[key.text][0]}"
                refuse(key.place, f"{text}; keep one of them")
            fields[key.text] = key.place, self.node(next(self.events), depth + 1)
        return Mapping(place, fields)


_WRITE_OUT = "anchors and aliases are not allowed; write the value out"


def _name(text: str, longest: int = 48) -> str:
    return quoted(text, longest)[1:-1]
