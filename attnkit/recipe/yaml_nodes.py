"""YAML as a tree of nodes with positions; every scalar stays the text that was written.

Only what a recipe needs is read: one document of mappings, lists and scalars.  Tags, anchors,
aliases, duplicate keys, deep nesting and large files are refused.  The tree is built from parser
events on a stack of our own, so that no input can exhaust the interpreter's.
"""

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from attnkit.errors import MissingInputError
from attnkit.recipe.problems import COMMAND_LINE, Position, refuse
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
        """Whether it is YAML's null."""
        return self.plain and self.text in _NULLS


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list."""

    place: Position
    items: list["Node"]


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys, each with its own position, and their values."""

    place: Position
    fields: dict[str, tuple[Position, "Node"]]


Node: TypeAlias = Scalar | Sequence | Mapping


def read_file(path: Path) -> Mapping:
    """The tree of a recipe file.

    Raises MissingInputError when it cannot be read, RecipeError when it is not acceptable YAML.
    """
    name = str(path)
    node = compose(read_text(path), name)
    if node is None:
        refuse(Position(name, 1, 1), "the file is empty; a recipe needs at least `task` and `data`")
    if not isinstance(node, Mapping):
        refuse(node.place, "a recipe must be a mapping of keys to values, such as `task: dialogue`")
    return node


def read_text(path: Path) -> str:
    """The text of a recipe file, which may be wrong in every other way.

    Raises MissingInputError when it cannot be read, RecipeError when it is not text or too large.
    """
    return _decode(_read_bytes(path), str(path))


def read_value(text: str) -> Node:
    """The value of KEY=VALUE: YAML where it starts like a list, mapping or quote, else text."""
    text = text.strip()
    if not text.startswith(("[", "{", '"', "'")):
        return Scalar(COMMAND_LINE, text)
    node = compose(text, COMMAND_LINE.source, inside=COMMAND_LINE)
    assert node is not None
    return node


def _read_bytes(path: Path) -> bytes:
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
    if len(raw) > LARGEST:
        refuse(
            Position(str(path), 1, 1), f"the file is larger than {LARGEST // 1024} kB; not a recipe"
        )
    return raw


def _decode(raw: bytes, name: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8-sig", "replace")
        byte = raw[error.start]
        refuse(_place_after(before, name), f"byte 0x{byte:02x} is not UTF-8; save it as UTF-8")
    for position, char in enumerate(text):
        if not (char.isprintable() or char in "\t\n\r\x85\xa0\ufeff" or ord(char) > 0x9F):
            place = _place_after(text[:position], name)
            refuse(place, f"control character {quoted(char)} is not allowed; delete it")
    return text


def _place_after(text: str, name: str) -> Position:
    return Position(name, text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1)


def compose(text: str, name: str, inside: Position | None = None) -> Node | None:
    """The tree of a YAML text, None for an empty one.

    `inside` replaces all positions.  Raises RecipeError.
    """
    builder = _Builder(name, inside)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.YAMLError as error:
        refuse(*_syntax(error, builder))
    return builder.root


class _Builder:
    """Turns parser events into nodes."""

    def __init__(self, name: str, inside: Position | None) -> None:
        self.name, self.inside = name, inside
        self.root: Node | None = None
        self._open: list[Sequence | Mapping] = []
        self._keys: list[Scalar | None] = []
        self._nodes = 0
        self._documents = 0

    def place(self, mark: Any) -> Position:
        """The position of a mark of the parser."""
        return self.inside or Position(self.name, mark.line + 1, mark.column + 1)

    def take(self, event: Any) -> None:
        """Add one event.  Raises RecipeError for what a recipe may not contain."""
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    refuse(self.place(event.start_mark), "a second document; a file is one recipe")
            case yaml.AliasEvent():
                refuse(
                    self.place(event.start_mark), f"alias *{_name(str(event.anchor))}: {_WRITE_OUT}"
                )
            case yaml.NodeEvent():
                self._node(event)
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                self._open.pop()
                self._keys.pop()

    def _node(self, event: Any) -> None:
        place = self.place(event.start_mark)
        if event.anchor is not None:
            refuse(place, f"anchor &{_name(event.anchor)}: {_WRITE_OUT}")
        if event.tag is not None:
            refuse(place, f"tag {_name(event.tag)}: tags are not allowed; write the value alone")
        self._nodes += 1
        if self._nodes > MOST_NODES:
            refuse(place, f"more than {MOST_NODES} keys and values; not a recipe")
        if isinstance(event, yaml.ScalarEvent):
            self._attach(Scalar(place, event.value, not event.style))
            return
        is_list = isinstance(event, yaml.SequenceStartEvent)
        node = Sequence(place, []) if is_list else Mapping(place, {})
        self._attach(node)
        self._open.append(node)
        self._keys.append(None)
        if len(self._open) > DEEPEST:
            refuse(place, f"nested deeper than {DEEPEST} levels; not a recipe")

    def _attach(self, node: Node) -> None:
        """Put a node where it belongs: root, list item, key, or value of the pending key."""
        if not self._open:
            self.root = node
            return
        parent, key = self._open[-1], self._keys[-1]
        if isinstance(parent, Sequence):
            parent.items.append(node)
        elif key is not None:
            parent.fields[key.text] = (key.place, node)
            self._keys[-1] = None
        elif not isinstance(node, Scalar):
            refuse(node.place, "a key must be text, not a list or mapping")
        elif node.text in parent.fields:
            first = parent.fields[node.text][0]
            text = f"key {quoted(node.text)} is given twice, first at {first}; keep one of them"
            refuse(node.place, text)
        else:
            self._keys[-1] = node


_WRITE_OUT = "anchors and aliases are not allowed; write the value out"


def _name(text: str, longest: int = 48) -> str:
    return quoted(text, longest)[1:-1]


def _syntax(error: yaml.YAMLError, builder: _Builder) -> tuple[Position, str]:
    """Position and text of a syntax error."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "malformed"
    context = getattr(error, "context", None)
    place = builder.place(mark) if mark else builder.inside or Position(builder.name, 1, 1)
    words = f"{context}: {problem}" if context else str(problem)
    words = _name(" ".join(words.split()), 160)
    return place, f"not valid YAML: {words}; check indent, quotes and brackets"
