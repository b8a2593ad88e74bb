"""From YAML nodes to typed values, by pydantic; and what is wrong with those that are refused.

The type decides what a text means: `1e-3` is a number where a number is wanted and text where text
is wanted; `no` is never a boolean.  So pydantic is strict, and is given what was written first as
JSON would read it, then with every unquoted scalar as text.
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
"""For types of values that may hold numbers."""
_BOOLEANS = {"yes": True, "on": True, "1": True, "no": False, "off": False, "0": False}


def typed(node: Node, kind: TypeAdapter[Any]) -> Any:
    """The value of a node of this type; on the command line `1,2` is a list where only one will do.

    Raises UsageError: what was wanted instead, and the nearest valid value.
    """
    reason = ""
    for value in _readings(node):
        try:
            return kind.validate_python(value, strict=True)
        except ValidationError as error:
            reason = reason or _own_words(error)
    raise UsageError(reason or wrong(node, kind))


def typed_value(value: Any, kind: TypeAdapter[Any], strict: bool = True) -> Any:
    """The same for a value of Python; unless `strict`, also for what is as good, as by NumPy."""
    try:
        return kind.validate_python(value, strict=strict)
    except ValidationError as error:
        text = f"must be {wanted(kind)}, got {value!r}"
        raise UsageError(_own_words(error) or text) from None


def _own_words(error: ValidationError) -> str:
    """What a validator of attnkit says; empty where pydantic alone refuses a value."""
    return next((str(e["ctx"]["error"]) for e in error.errors() if e["type"] == "value_error"), "")


def as_json(node: Node, numbers: bool = True) -> Any:
    """A node as JSON would read it; without `numbers` all scalars but null stay text."""
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
    """What a node may mean, the likeliest first."""
    yield as_json(node)
    yield as_json(node, numbers=False)
    if isinstance(node, Scalar) and node.place == COMMAND_LINE and node.text:
        words = [Scalar(COMMAND_LINE, word.strip()) for word in node.text.split(",")]
        yield from (tuple(as_json(word, numbers) for word in words) for numbers in (True, False))


def schema_of(kind: TypeAdapter[Any]) -> Json:
    """The JSON Schema of a type, without references."""
    schema = kind.json_schema()
    parts = [
        part | schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        for part in schema.get("anyOf", ())
    ]
    return schema | {"anyOf": parts} if parts else schema


def wanted(kind: TypeAdapter[Any]) -> str:
    """What a type wants, in words."""
    return phrase(schema_of(kind))


def takes_list(kind: TypeAdapter[Any]) -> bool:
    """Whether a type has lists among its values."""
    schema = schema_of(kind)
    return any(part.get("type") == "array" for part in schema.get("anyOf", [schema]))


def written(node: Node) -> str:
    """A node in a message that refuses it."""
    if isinstance(node, Scalar):
        return ("null" if node.text else "nothing") if node.null else quoted(node.text)
    return quoted(shown(as_json(node, numbers=False)), 80)[1:-1]


def wrong(node: Node, kind: TypeAdapter[Any]) -> str:
    """What was wanted instead of a value, and the nearest valid one."""
    schema = schema_of(kind)
    choices = shorten(phrase(schema), 300, placeholder=" ...")
    text = f"must be {choices}, got {written(node)}"
    for value in _like(node, [*_leaves(schema)]):
        with suppress(ValidationError):
            return f"{text}; did you mean {shown(kind.validate_python(value, strict=True))}?"
    if schema.get("default") is not None:
        return f"{text}; the default is {shown(schema['default'])}"
    return text


def _leaves(schema: Json) -> Iterator[Json]:
    """The types of single values that a type is made of."""
    inner = [*schema.get("anyOf", ()), *schema.get("prefixItems", ())]
    inner += [schema["items"]] if "items" in schema else []
    for part in inner:
        yield from _leaves(part)
    if not inner:
        yield schema


def _like(node: Node, leaves: list[Json]) -> Iterator[Any]:
    """Values that may have been meant by a scalar, or by the scalars of a list."""
    texts = []
    if isinstance(node, Scalar):
        yield as_json(Scalar(node.place, node.text))  # without quotes
        yield _nearest(node.text, leaves)
        texts = node.text.split(",")
    elif isinstance(node, Sequence):
        texts = [item.text for item in node.items if isinstance(item, Scalar)]
    yield tuple(dict.fromkeys(_nearest(text.strip(), leaves) for text in texts))


def _nearest(text: str, leaves: list[Json]) -> Any:
    """The choice, number or boolean that is most like a text."""
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
