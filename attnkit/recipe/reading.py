"""From YAML nodes to typed values, by pydantic; and what is wrong with those that are refused.

The type decides what a text means: `1e-3` is a number where a number is wanted and text where text
is wanted; `no` is never a boolean.  So pydantic is strict, and is given every unquoted scalar as
JSON would read it, then as text where it says that it wants text.
"""

import math
import re
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from functools import cache
from itertools import takewhile
from typing import Any, TypeAlias

from pydantic import TypeAdapter, ValidationError

from attnkit.errors import UsageError
from attnkit.recipe import mechanism_registry
from attnkit.recipe.issues import COMMAND_LINE, Key, ValidationIssue, ValidationIssues, dotted
from attnkit.recipe.schema import AttentionConfig, Recipe
from attnkit.recipe.values import Json, Section, choices_of, phrase, resolved, shown, written
from attnkit.recipe.yaml_nodes import Mapping, Node, Scalar, Sequence, read_value
from attnkit.text import hint, nearest, quoted

Path: TypeAlias = tuple[int | str, ...]
"""The way from a node to one inside it: indices and keys."""
RECIPE = TypeAdapter(Recipe)
_MECHANISM = TypeAdapter(AttentionConfig)

_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]{0,18})")
_NUMBER = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?")
_WANTS_TEXT = ("string_type", "literal_error")
"""Errors of pydantic for a number or boolean that may be meant as text."""


def read(node: Node, kind: TypeAdapter[Any]) -> Any:
    """The value of a node of this type; on the command line `1,2` is a list where only one will do.

    Raises ValidationIssues: all that is wrong inside the node.
    """
    texts: set[Path] = set()
    while True:
        try:
            return kind.validate_python(as_json(node, texts), strict=True)
        except ValidationError as error:
            errors = [(*_locate(node, e["loc"]), e) for e in error.errors(include_url=False)]
        scalars = [(path, at, e["type"]) for path, at, e in errors if isinstance(at, Scalar)]
        if more := {path for path, _, what in scalars if what in _WANTS_TEXT} - texts:
            texts |= more
            continue
        again = False
        for path, at, what in scalars:
            above = _locate(node, path[:-1])[1]
            words = split_words(at) if what == "tuple_type" else []
            if words and path and isinstance(above, Mapping):
                name = str(path[-1])
                above.fields[name] = above.fields[name][0], Sequence(COMMAND_LINE, words)
                again = True
        if not again:
            raise ValidationIssues(_issues(node, kind, errors))


def as_json(node: Node, texts: set[Path] | frozenset[Path] = frozenset(), path: Path = ()) -> Any:
    """A node as JSON would read it; scalars at `texts`, unless null, stay text."""
    if isinstance(node, Sequence):
        return tuple(as_json(item, texts, (*path, i)) for i, item in enumerate(node.items))
    if isinstance(node, Mapping):
        return {key: as_json(item, texts, (*path, key)) for key, (_, item) in node.fields.items()}
    if node.null:
        return None
    if not node.plain or path in texts:
        return node.text
    if node.text in ("true", "false"):
        return node.text == "true"
    if _WHOLE.fullmatch(node.text):
        return int(node.text)
    if _NUMBER.fullmatch(node.text) and math.isfinite(float(node.text)):
        return float(node.text)
    return node.text


def split_words(node: Node) -> list[Node]:
    """The items of `1,2` from the command line; empty for anything else."""
    if not isinstance(node, Scalar) or node.place != COMMAND_LINE or not node.text:
        return []
    return [Scalar(COMMAND_LINE, word.strip()) for word in node.text.split(",")]


def options_of(word: str, nodes: dict[str, Node]) -> dict[str, Any]:
    """Typed options of a mechanism from those that a command line names.

    Raises UsageError: one line for each that is refused, or an option is missing.
    """
    known = mechanism_registry.facts(word).options
    if missing := [name for name, o in known.items() if o.required and name not in nodes]:
        raise UsageError(f"{word} needs {', '.join(missing)}; write {missing[0]}=VALUE")
    fields = {"name": Scalar(COMMAND_LINE, word, plain=False), **nodes}
    root = Mapping(COMMAND_LINE, {name: (COMMAND_LINE, node) for name, node in fields.items()})
    try:
        options: dict[str, Any] = read(root, _MECHANISM).options()
    except ValidationIssues as refused:
        lines = (f"{COMMAND_LINE}: {dotted(one.key)}: {one.text}" for one in refused.found)
        raise UsageError("\n".join(sorted(lines))) from refused
    return options


def options_of_words(word: str, words: Items[str]) -> dict[str, Any]:
    """Typed options from KEY=VALUE words, whose values may be YAML.  Raises UsageError."""
    nodes: dict[str, Node] = {}
    for text in words:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise UsageError(f"{quoted(text)} must be KEY=VALUE, an option of {word}")
        if name in nodes:
            raise UsageError(f"{name} is given twice; give it once")
        nodes[name] = read_value(value)
    return options_of(word, nodes)


def first_wrong(error: ValidationError, section: type[Section]) -> tuple[str, str]:
    """The first field of a section that pydantic refuses, and what is wrong with its value."""
    first = error.errors()[0]
    name = str(first["loc"][0])
    node = Scalar(COMMAND_LINE, str(first["input"]))
    return name, _wrong(node, *_wanted(TypeAdapter(section), (name,)))


def _locate(node: Node, location: Path) -> tuple[Path, Node]:
    """Where an error of pydantic's is, without the names of the types that it tried."""
    path: Path = ()
    for step in location:
        if isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
            path, node = (*path, step), node.items[step]
        elif isinstance(node, Mapping) and step in node.fields:
            path, node = (*path, step), node.fields[str(step)][1]
    return path, node


def _issues(
    node: Node, kind: TypeAdapter[Any], errors: list[tuple[Path, Node, Any]]
) -> Iterator[ValidationIssue]:
    """One issue a value: of the types that a union tried the deepest error, of a list the first."""
    found: dict[Path, tuple[Node, Any]] = {}
    for path, at, error in errors:
        if error["type"] == "missing" and isinstance(at, Mapping):
            path = (*path, error["loc"][-1])
        found.setdefault(path, (at, error))
    above = {path[:size] for path in found for size in range(len(path))}
    told = set[Path]()
    for path, (at, error) in found.items():
        value = tuple(takewhile(lambda step: isinstance(step, str), path))
        if path not in above and value not in told:
            told.add(value)
            yield _issue(node, kind, path, at, error)


def _issue(root: Node, kind: TypeAdapter[Any], path: Path, at: Node, error: Any) -> ValidationIssue:
    key = tuple(step for step in path if isinstance(step, str))
    _, holder = _locate(root, path[:-1])
    fields = holder.fields if isinstance(holder, Mapping) and at is not holder else {}
    name_place, _ = fields.get(key[-1] if key else "", (None, None))
    match error["type"]:
        case "refused":
            context = error["ctx"]
            text = context["text"] + (f", got {written(at)}" if context.get("got") else "")
            key = key[:-1] if key[-1:] == ("name",) else key
            place = name_place if context.get("key") else at.place
            return ValidationIssue(text, key, place=place)
        case "missing" if isinstance(at, Mapping):
            return ValidationIssue("is missing", key, place=at.place)
        case what if what == "extra_forbidden" or error["loc"][-1:] == ("[key]",):
            members_ = members(_wanted(kind, path[:-1], root)[0])
            known = [name for member in members_ for name in _names(member)]
            return ValidationIssue(unknown_key(key[-1], known), key, place=name_place)
    return ValidationIssue(_wrong(at, *_wanted(kind, path, root)), key, place=at.place)


def _wrong(node: Node, schema: Json, default: Any = None) -> str:
    """What was wanted instead of a value, and the nearest valid one."""
    advice = next(_advice(node, schema), None) if isinstance(node, Scalar) else None
    if advice is None and default is not None:
        advice = f"the default is {shown(default)}"
    text = f"must be {phrase(schema)}, got {written(node)}"
    return f"{text}; {advice}" if advice else text


def _names(schema: Json) -> list[str]:
    """The keys of a mapping."""
    return [*schema.get("properties", schema.get("propertyNames", {}).get("enum", ()))]


def unknown_key(name: str, known: Iterable[str]) -> str:
    """Why a key is refused, and the nearest one."""
    return f"unknown key; {hint(name, known)}"


@cache
def _json_schema(kind: TypeAdapter[Any]) -> Json:
    return kind.json_schema()


def _wanted(kind: TypeAdapter[Any], path: Path, node: Node | None = None) -> tuple[Json, Any]:
    """The JSON Schema of what is wanted at a path, and the default there, if any.

    `node` is what was written; it names the mechanisms of whose options a path may lead.
    """
    root = _json_schema(kind)
    part, default, inside = resolved(root, root), None, ""
    for step in path:
        fields = node.fields if isinstance(node, Mapping) else {}
        _, name = fields.get("name", (None, None))
        if isinstance(name, Scalar) and {*part.get("properties", ())} <= {"name"} != {step}:
            root = _json_schema(mechanism_registry.options_type(name.text, inside))
            part, inside = resolved(root, root), name.text
        for member in members(part):
            if isinstance(step, int) and member.get("type") == "array":
                items = member.get("prefixItems", [])
                part = resolved(items[step] if step < len(items) else member.get("items", {}), root)
            elif isinstance(step, str) and member.get("type") == "object":
                others = member.get("additionalProperties")
                inner = member.get("properties", {}).get(step, others)
                part = resolved(inner if isinstance(inner, dict) else member, root)
                default = part.get("default")
        if isinstance(node, Sequence) and isinstance(step, int):
            node = node.items[step]
        else:
            _, node = fields.get(str(step), (None, None))
    return part, default


def schema_at(key: Key) -> Json:
    """The JSON Schema of the value of a key of a recipe."""
    return _wanted(RECIPE, key)[0]


def members(schema: Json) -> list[Json]:
    """The alternatives of a type."""
    alternatives: list[Json] = schema.get("anyOf", [schema])
    return alternatives


def _leaves(schema: Json) -> Iterator[Json]:
    """The alternatives of a type, and of the items of its lists."""
    for member in members(schema):
        items = member.get("prefixItems", [member["items"]] if "items" in member else [])
        if items:
            for item in items:
                yield from _leaves(item)
        else:
            yield member


_BOOLEANS = dict.fromkeys(("yes", "on", "y", "1", "true"), "true") | dict.fromkeys(
    ("no", "off", "n", "0", "false"), "false"
)


def _advice(node: Scalar, schema: Json) -> Iterator[str]:
    """Nearest valid values, best first."""
    leaves = [*_leaves(schema)]
    fits = any(_fits(node.text, leaf) for leaf in leaves)
    if fits and any("items" in member for member in members(schema)):
        yield f"write [{quoted(node.text)[1:-1]}]"
    if fits and not node.plain:
        yield "remove the quotes"
    for leaf in leaves:
        if close := nearest(node.text, map(shown, choices_of(leaf))):
            yield f"did you mean {close}?"
        elif leaf.get("type") == "boolean" and node.text.lower() in _BOOLEANS:
            yield f"write {_BOOLEANS[node.text.lower()]}"
        elif leaf.get("type") in ("integer", "number"):
            try:
                value = float(node.text.replace("_", "")) if len(node.text) <= 400 else math.nan
            except ValueError:
                continue
            near = min(max(value, leaf.get("minimum", -math.inf)), leaf.get("maximum", math.inf))
            above = leaf.get("exclusiveMinimum", -math.inf)
            if not above < near < leaf.get("exclusiveMaximum", math.inf):
                continue  # also where the text says that it is no number
            if near != value:
                yield f"the nearest valid value is {near:.15g}"
            else:
                yield f"write {round(near) if leaf['type'] == 'integer' else repr(near)}"


def _fits(text: str, leaf: Json) -> bool:
    """Whether a text, without quotes, is a choice, a number or a boolean of a type."""
    value = as_json(Scalar(COMMAND_LINE, text))
    if choices := choices_of(leaf):
        return value in choices
    kinds = {"boolean": (bool,), "integer": (int,), "number": (int, float)}
    if type(value) not in kinds.get(leaf.get("type", ""), ()):
        return False
    low, high = leaf.get("minimum", -math.inf), leaf.get("maximum", math.inf)
    above, below = leaf.get("exclusiveMinimum", -math.inf), leaf.get("exclusiveMaximum", math.inf)
    return bool(low <= value <= high and above < value < below)
