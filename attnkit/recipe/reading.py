"""Conversion of YAML nodes to typed values by pydantic, and messages for values that are refused.

The type decides what a text means: `1e-3` is a number if a number is wanted and text if text is wanted; `no` is never
a boolean.  So pydantic is strict, and is first given the value as JSON would read it, then with every unquoted scalar
as text.
"""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from textwrap import shorten
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from attnkit.errors import UsageError
from attnkit.recipe.issues import COMMAND_LINE
from attnkit.recipe.values import Json, choices_of, phrase, shown
from attnkit.recipe.yaml_nodes import Mapping, Node, Scalar, Sequence
from attnkit.text import nearest, quoted

_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]{0,18})")
_NUMBER = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?")
FINITE = ConfigDict(allow_inf_nan=False)
"""Configuration for types that may contain numbers: neither infinite nor NaN."""
_BOOLEANS = {"yes": True, "on": True, "1": True, "no": False, "off": False, "0": False}


def typed(node: Node, kind: TypeAdapter[Any]) -> Any:
    """Return the value of a node; on the command line `1,2` is a list if the type accepts nothing else.

    Raises UsageError with the wanted values and the nearest valid one.
    """
    reason = ""
    for value in _readings(node):
        try:
            return kind.validate_python(value, strict=True)
        except ValidationError as error:
            reason = reason or _validator_message(error)
    raise UsageError(reason or mismatch(node, kind))


def typed_value(value: Any, kind: TypeAdapter[Any], strict: bool = True) -> Any:
    """Return a Python value converted to a type; unless `strict`, also from NumPy types.  Raises UsageError."""
    try:
        return kind.validate_python(value, strict=strict)
    except ValidationError as error:
        text = f"must be {wanted(kind)}, got {value!r}"
        raise UsageError(_validator_message(error) or text) from None


def _validator_message(error: ValidationError) -> str:
    """Return the message of a validator of attnkit, or "" if pydantic itself refuses the value."""
    return next((str(e["ctx"]["error"]) for e in error.errors() if e["type"] == "value_error"), "")


def as_json(node: Node, numbers: bool = True) -> Any:
    """Return a node as JSON would read it; without `numbers`, all scalars except null stay text."""
    if isinstance(node, Sequence):
        return tuple(as_json(item, numbers) for item in node.items)
    if isinstance(node, Mapping):
        return {key: as_json(item, numbers) for key, (_, item) in node.fields.items()}
    if node.null:
        return None
    if not node.plain or not numbers:
        return node.text
    if node.text in ("true", "false"):
        return node.text == "true"
    if _WHOLE.fullmatch(node.text):
        return int(node.text)
    if _NUMBER.fullmatch(node.text) and math.isfinite(float(node.text)):
        return float(node.text)
    return node.text


def _readings(node: Node) -> Iterator[Any]:
    """Yield the possible meanings of a node, the most likely first."""
    yield as_json(node)
    yield as_json(node, numbers=False)
    if isinstance(node, Scalar) and node.place == COMMAND_LINE and node.text:
        words = [Scalar(COMMAND_LINE, word.strip()) for word in node.text.split(",")]
        yield from (tuple(as_json(word, numbers) for word in words) for numbers in (True, False))


def schema_of(kind: TypeAdapter[Any]) -> Json:
    """Return the JSON Schema of a type, without references."""
    schema = kind.json_schema()
    parts = [
        part | schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        for part in schema.get("anyOf", ())
    ]
    return schema | {"anyOf": parts} if parts else schema


def wanted(kind: TypeAdapter[Any]) -> str:
    """Return a description of the values that a type accepts."""
    return phrase(schema_of(kind))


def takes_list(kind: TypeAdapter[Any]) -> bool:
    """Return whether a type accepts lists."""
    schema = schema_of(kind)
    return any(part.get("type") == "array" for part in schema.get("anyOf", [schema]))


def written(node: Node) -> str:
    """Return a node as text, for a message that refuses it."""
    if isinstance(node, Scalar):
        return ("null" if node.text else "nothing") if node.null else quoted(node.text)
    return quoted(shown(as_json(node, numbers=False)), 80)[1:-1]


def mismatch(node: Node, kind: TypeAdapter[Any]) -> str:
    """Return the message that refuses a value, with the wanted values and the nearest valid one."""
    schema = schema_of(kind)
    choices = shorten(phrase(schema), 300, placeholder=" ...")
    text = f"must be {choices}, got {written(node)}"
    for value in _candidates(node, [*_leaves(schema)]):
        with suppress(ValidationError):
            return f"{text}; did you mean {shown(kind.validate_python(value, strict=True))}?"
    if schema.get("default") is not None:
        return f"{text}; the default is {shown(schema['default'])}"
    return text


def _leaves(schema: Json) -> Iterator[Json]:
    """Yield the schemas of the single values that a type consists of."""
    inner = [*schema.get("anyOf", ()), *schema.get("prefixItems", ())]
    inner += [schema["items"]] if "items" in schema else []
    for part in inner:
        yield from _leaves(part)
    if not inner:
        yield schema


def _candidates(node: Node, leaves: list[Json]) -> Iterator[Any]:
    """Yield values that may have been meant by a scalar, or by the scalars of a list."""
    texts = []
    if isinstance(node, Scalar):
        yield as_json(Scalar(node.place, node.text))  # without quotes
        yield _nearest(node.text, leaves)
        texts = node.text.split(",")
    elif isinstance(node, Sequence):
        texts = [item.text for item in node.items if isinstance(item, Scalar)]
    yield tuple(dict.fromkeys(_nearest(text.strip(), leaves) for text in texts))


def _nearest(text: str, leaves: list[Json]) -> Any:
    """Return the choice, number or boolean that is nearest to a text."""
    choices = {shown(choice): choice for leaf in leaves for choice in choices_of(leaf)}
    if close := nearest(text, choices):
        return choices[close]
    kinds = {leaf.get("type") for leaf in leaves}
    if "boolean" in kinds and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    try:
        number = float(text.replace("_", "")) if len(text) <= 400 else math.nan
    except ValueError:
        return text
    low = max((leaf["minimum"] for leaf in leaves if "minimum" in leaf), default=-math.inf)
    high = min((leaf["maximum"] for leaf in leaves if "maximum" in leaf), default=math.inf)
    number = min(max(number, low), high)
    return number if "number" in kinds or not math.isfinite(number) else round(number)
