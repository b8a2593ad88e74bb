"""YAML as a tree of nodes with positions; every scalar stays the text that was written.

Only what a recipe needs is supported: one document of mappings, lists and scalars.  Tags, anchors, aliases, duplicate
keys, deep nesting and large files are refused.  The tree is built from parser events, so that deep nesting is refused
before it exhausts the interpreter's stack.
"""

import re
import stat
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from attnkit.errors import MissingInputError
from attnkit.recipe.issues import COMMAND_LINE, Position, refuse
from attnkit.text import quoted

MAX_BYTES = 256 * 1024
"""Maximum size of a recipe file, in bytes."""
MAX_DEPTH = 32
"""Maximum depth of nesting."""
MAX_NODES = 10_000
"""Maximum number of keys and values of a recipe."""

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value as text; `plain` means that it was written without quotes."""

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
    """Return whether a key has no value, or null."""
    return isinstance(node, Scalar) and node.null


def read_file(path: Path, content: bytes | None = None) -> Mapping:
    """Return the tree of a recipe file; `content` is its content, if already read.

    Raises MissingInputError if it cannot be read, RecipeError if it is not acceptable YAML.
    """
    name = str(path)
    node = compose(read_text(path) if content is None else _text(content, name), name)
    if not isinstance(node, Mapping):
        text = "a recipe must be a mapping of keys to values, such as `task: dialogue`"
        refuse(node.place if node else Position(name, 1, 1), text)
    return node


def read_text(path: Path) -> str:
    """Return the text of a recipe file, without parsing it.

    Raises MissingInputError if it cannot be read, RecipeError if it is not text or too large.
    """
    shown = quoted(str(path), 200)
    try:
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind):
            what = "a folder" if stat.S_ISDIR(kind) else "not a regular file"
            raise MissingInputError(f"recipe {shown} is {what}; name a .yaml file")
        with path.open("rb") as file:
            return _text(file.read(MAX_BYTES + 1), str(path))
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        why = getattr(error, "strerror", None) or "not a file name"
        raise MissingInputError(f"recipe {shown} cannot be read: {why}") from None


def _text(raw: bytes, name: str) -> str:
    if len(raw) > MAX_BYTES:
        refuse(Position(name, 1, 1), f"the file is larger than {MAX_BYTES // 1024} kB, the maximum for a recipe")
    text = raw.decode("utf-8-sig", "surrogateescape")
    if bad := re.search(f"{_CONTROL.pattern}|[\ud800-\udfff]", text):
        start = text.rfind("\n", 0, bad.start()) + 1
        place = Position(name, text.count("\n", 0, start) + 1, bad.start() - start + 1)
        if bad[0] >= "\ud800":
            refuse(place, f"byte 0x{ord(bad[0]) - 0xDC00:02x} is not UTF-8; save it as UTF-8")
        refuse(place, f"control character {quoted(bad[0])} is not allowed; delete it")
    return text


def read_value(text: str) -> Node:
    """Parse the value of KEY=VALUE: YAML if it starts like a list, mapping or quote, otherwise text."""
    text = text.strip()
    if not text.startswith(("[", "{", '"', "'")):
        return Scalar(COMMAND_LINE, text)
    if any("\ud800" <= char <= "\udfff" for char in text):
        refuse(COMMAND_LINE, f"{quoted(text)} has bytes that are not UTF-8; write it as UTF-8")
    node = compose(text, COMMAND_LINE.source, inside=COMMAND_LINE)
    assert node is not None
    return node


def compose(text: str, name: str, inside: Position | None = None) -> Node | None:
    """Return the tree of a YAML text, or None if it is empty; `inside` replaces all positions.  Raises RecipeError."""
    events, number = yaml.parse(text, Loader=_LOADER), count()

    def place(mark: Any) -> Position:
        return inside or Position(name, mark.line + 1, mark.column + 1)

    def node(event: Any, depth: int = 0) -> Node:
        here = place(event.start_mark)
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            what = _short(str(event.anchor))
            refuse(here, f"anchors and aliases ({what}) are not allowed; write the value out")
        if event.tag is not None:
            refuse(here, f"tag {_short(event.tag)}: tags are not allowed; remove the tag")
        if next(number) == MAX_NODES:
            refuse(here, f"more than {MAX_NODES} keys and values, the maximum for a recipe")
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(here, event.value, not event.style)
        if depth == MAX_DEPTH:
            refuse(here, f"nested deeper than {MAX_DEPTH} levels, the maximum for a recipe")
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(event := next(events), yaml.SequenceEndEvent):
                items.append(node(event, depth + 1))
            return Sequence(here, items)
        fields: dict[str, tuple[Position, Node]] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if isinstance(event, yaml.CollectionStartEvent):
                refuse(place(event.start_mark), "a key must be text, not a list or mapping")
            key = node(event, depth + 1)
            assert isinstance(key, Scalar)
            if key.text in fields:
                text = f"key {quoted(key.text)} is given twice, first at {fields[key.text][0]}"
                refuse(key.place, f"{text}; keep one of them")
            fields[key.text] = key.place, node(next(events), depth + 1)
        return Mapping(here, fields)

    root = None
    try:
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent) and root is not None:
                refuse(place(event.start_mark), "a second YAML document; a recipe file contains one")
            if isinstance(event, yaml.NodeEvent):
                root = node(event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = " ".join(str(getattr(error, "problem", None) or "malformed").split())
        where = place(mark) if mark else inside or Position(name, 1, 1)
        refuse(where, f"not valid YAML: {_short(problem, 160)}; check indent, quotes and brackets")
    return root


def _short(text: str, max_length: int = 48) -> str:
    return quoted(text, max_length)[1:-1]
