"""From the text of a YAML node to a value, by pydantic; and what is wrong with one that is refused.

The type decides what a text means: `1e-3` is a number where a number is wanted and text where text
is wanted; `no` is never a boolean.  So pydantic is strict, and is given every unquoted scalar as
JSON would read it, then as text where it says that it wants text.
"""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from attnkit.recipe.issues import COMMAND_LINE, ValidationIssue
from attnkit.recipe.yaml_nodes import Mapping, Node, Scalar, Sequence
from attnkit.text import nearest, quoted

LARGEST = 2**31 - 1
"""No whole number of a recipe is larger."""
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Path: TypeAlias = tuple[int | str, ...]
"""The way from a node to one inside it: indices and keys."""
Json: TypeAlias = dict[str, Any]

_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]{0,18})")
_NUMBER = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?")
_WANTS_TEXT = ("string_type", "literal_error")
"""Errors of pydantic for a number or boolean that may be meant as text."""


class Section(BaseModel):
    """A section of a recipe; it is frozen and refuses unknown keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def read(node: Node, kind: TypeAdapter[Any], default: Any = None) -> Any:
    """The value of a node.

    Args:
        node: a value of a recipe; on the command line `1,2` is a list where only a list will do.
        kind: the type that is wanted.
        default: named in the message where no better advice is known; None names none.

    Raises:
        ValidationIssue: the node is not of that type or out of its bounds.
    """
    texts: set[Path] = set()
    while True:
        try:
            return kind.validate_python(as_json(node, texts), strict=True)
        except ValidationError as error:
            errors = [(*_locate(node, e["loc"]), e["type"], e["loc"]) for e in error.errors()]
        scalars = (
            path for path, at, error, _ in errors if isinstance(at, Scalar) and error in _WANTS_TEXT
        )
        if more := {*scalars} - texts:
            texts |= more
        elif ((), "tuple_type") in [(e[0], e[2]) for e in errors] and (words := split_words(node)):
            node = Sequence(node.place, words)
        else:
            break
    path, at, what, location = max(errors, key=lambda found: len(found[0]))
    key = tuple(step for step in path if isinstance(step, str))
    if what == "missing" and isinstance(at, Mapping):
        raise ValidationIssue("is missing", (*key, str(location[-1])), place=at.place)
    if what == "extra_forbidden" or location[-1:] == ("[key]",):
        above = _locate(node, path[:-1])[1]
        assert isinstance(above, Mapping)
        known = [name for member in members(_schema(kind, path[:-1])) for name in _names(member)]
        raise ValidationIssue(unknown_key(key[-1], known), key, place=above.fields[key[-1]][0])
    raise ValidationIssue(_wrong(at, _schema(kind, path), default), key, place=at.place)


def first_wrong(error: ValidationError, section: type[Section]) -> tuple[str, str]:
    """The first field of a section that pydantic refuses, and what is wrong with its value."""
    first = error.errors()[0]
    name = str(first["loc"][0])
    node = Scalar(COMMAND_LINE, str(first["input"]))
    return name, _wrong(node, _schema(TypeAdapter(section), (name,)))


def _wrong(node: Node, schema: Json, default: Any = None) -> str:
    """What was wanted instead of a value, and the nearest valid one."""
    advice = next(_advice(node, schema), None) if isinstance(node, Scalar) else None
    if advice is None and default is not None:
        advice = f"the default is {shown(default)}"
    text = f"must be {phrase(schema)}, got {written(node)}"
    return f"{text}; {advice}" if advice else text


def _locate(node: Node, location: Path) -> tuple[Path, Node]:
    """Where an error of pydantic's is, without the names of the types that it tried."""
    path: Path = ()
    for step in location:
        if isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
            path, node = (*path, step), node.items[step]
        elif isinstance(node, Mapping) and step in node.fields:
            path, node = (*path, step), node.fields[str(step)][1]
    return path, node


def _names(schema: Json) -> list[str]:
    """The keys of a mapping."""
    return [*schema.get("properties", schema.get("propertyNames", {}).get("enum", ()))]


def unknown_key(name: str, known: Iterable[str]) -> str:
    """Why a key is refused, and the nearest one."""
    close = nearest(name, known)
    hint = f"did you mean {close}?" if close else f"there are {', '.join(known)}"
    return f"unknown key; {hint}"


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


def _schema(kind: TypeAdapter[Any], path: Path) -> Json:
    """The JSON Schema of what is wanted at a path."""
    root = kind.json_schema()

    def resolved(part: Json) -> Json:
        part = root["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        return part | ({"anyOf": [*map(resolved, part["anyOf"])]} if "anyOf" in part else {})

    part = resolved(root)
    for step in path:
        for member in members(part):
            if isinstance(step, int) and member.get("type") == "array":
                items = member.get("prefixItems", [])
                part = resolved(items[step] if step < len(items) else member.get("items", {}))
            elif member.get("type") == "object":
                others = member.get("additionalProperties")
                others = others if isinstance(others, dict) else member
                part = resolved(member.get("properties", {}).get(step, others))
    return part


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


def choices(kind: TypeAdapter[Any]) -> list[str]:
    """The words that a type takes, alone or in a list: those of a Literal, true and false."""
    found = list[str]()
    for leaf in _leaves(_schema(kind, ())):
        found += ["true", "false"] if leaf.get("type") == "boolean" else map(shown, _choices(leaf))
    return found


def _choices(schema: Json) -> list[Any]:
    return [schema["const"]] if "const" in schema else schema.get("enum", [])


def values_of(kind: TypeAdapter[Any]) -> str:
    """The values that a type takes, in words."""
    return phrase(_schema(kind, ()))


def phrase(schema: Json) -> str:
    """What a type wants, in words."""
    if "anyOf" in schema:
        return " or ".join(map(phrase, schema["anyOf"]))
    if choices := [shown(choice) for choice in _choices(schema)]:
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if schema.get("type") == "array":
        least = " of at least one" if schema.get("minItems") else ""
        items = [phrase(item).removeprefix("a ") for item in schema.get("prefixItems", [])]
        if items:
            return f"a list of {len(items)}: [{', '.join(items)}]"
        return f"a list{least}: [{phrase(schema.get('items', {})).removeprefix('a ')}, ...]"
    if "properties" in schema:
        return f"a mapping of {', '.join(schema['properties'])}"
    names = {
        "boolean": "true or false",
        "integer": "a whole number",
        "number": "a number",
        "string": "text",
        "null": "null",
        "object": "a mapping of at least one" if schema.get("minProperties") else "a mapping",
    }
    signs = {">=": "minimum", ">": "exclusiveMinimum", "<=": "maximum", "<": "exclusiveMaximum"}
    bounds = [
        f"{sign} {schema[key]:g}"
        for sign, key in signs.items()
        if schema.get(key, LARGEST) != LARGEST
    ]
    name = names.get(schema.get("type", ""), "a value")
    return f"{name} {' and '.join(bounds)}" if bounds else name


def written(node: Node) -> str:
    if isinstance(node, Sequence):
        return f"a list of {len(node.items)}" if node.items else "an empty list"
    if isinstance(node, Mapping):
        return "a mapping" if node.fields else "an empty mapping"
    if node.null:
        return "null" if node.text else "nothing"
    return quoted(node.text)


def shown(value: Any, most: int = 80) -> str:
    """A value as a recipe would write it, on one line; texts have `most` characters at most."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(shown(item, most) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(item, most)}" for key, item in value.items()) + "}"
    return quoted(str(value), most)[1:-1]


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
        if close := nearest(node.text, map(shown, _choices(leaf))):
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
    if choices := _choices(leaf):
        return value in choices
    kinds = {"boolean": (bool,), "integer": (int,), "number": (int, float)}
    return type(value) in kinds.get(leaf.get("type", ""), ())
