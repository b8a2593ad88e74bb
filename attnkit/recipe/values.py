"""Types of the keys of a recipe, and the formatting of values."""

import re
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from attnkit.text import quoted

Json: TypeAlias = dict[str, Any]
MAX_INTEGER = 2**31 - 1
"""Maximum integer in a recipe."""
Positive = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]


Values = TypeVar("Values")


def _unique(values: Values) -> Values:
    if isinstance(values, tuple):
        for number, value in enumerate(values):
            if value in values[:number]:
                raise ValueError(f"names {value} twice; name each once")
    return values


def _piece(text: str) -> str:
    if re.search("[\\s\u2581\0\ud800-\udfff]", text) or not text:
        raise ValueError(f"{quoted(text)} must be text without white space")
    return text


def _file_name(text: str) -> str:
    if "\0" in text or not text:
        raise ValueError("a path must be a file name")
    return text


Unique = Annotated[Values, AfterValidator(_unique)]
"""A value that, if it is a list, has no element twice."""
Piece = Annotated[str, AfterValidator(_piece)]
"""A vocabulary piece: no white space, no sentencepiece word mark, no characters that tokenizers replace."""
FileName = Annotated[str, AfterValidator(_file_name)]


class Section(BaseModel):
    """A section of a recipe; frozen, unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)
    _later: ClassVar[tuple[str, ...]] = ()
    """Keys that earlier versions lack: omitted at their defaults, so that digests do not change."""

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        for key in self._later:
            if getattr(self, key) == type(self).model_fields[key].default:
                values.pop(key, None)
        return values


class OnlyWith:
    """Tag in the type of a key that is read only if another key has one of some values.

    A resolved recipe has all keys, for any type of model, loss or search, and digests of runs are computed from it.
    Therefore alternatives are keys side by side, each with a tag, instead of members of a union.
    """

    def __init__(self, key: str, *values: str) -> None:
        self.key, self.values = key, values


def shown(value: Any, max_length: int = 80) -> str:
    """Format a value as in a recipe, on one line; texts are cut to `max_length` characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(shown(item, max_length) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(item, max_length)}" for key, item in value.items()) + "}"
    return quoted(str(value), max_length)[1:-1]


def choices_of(schema: Json) -> list[Any]:
    """Return the values that a JSON Schema enumerates."""
    return [schema["const"]] if "const" in schema else schema.get("enum", [])


_KINDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "null": "null",
}
_SIGNS = {">=": "minimum", ">": "exclusiveMinimum", "<=": "maximum", "<": "exclusiveMaximum"}


def phrase(schema: Json) -> str:
    """Describe in words the values that a JSON Schema accepts."""
    if "wanted" in schema:
        return str(schema["wanted"])
    if "anyOf" in schema:
        return " or ".join(map(phrase, schema["anyOf"]))
    if choices := [shown(choice) for choice in choices_of(schema)]:
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    article = "a non-empty" if schema.get("minItems") or schema.get("minProperties") else "a"
    if schema.get("type") == "array":
        items = [phrase(item).removeprefix("a ") for item in schema.get("prefixItems", [])]
        if items:
            return f"a list of {len(items)}: [{', '.join(items)}]"
        return f"{article} list: [{phrase(schema.get('items', {})).removeprefix('a ')}, ...]"
    if schema.get("type") == "object":
        if keys := schema.get("properties"):
            each = (f"{key} ({phrase(part)})" for key, part in keys.items())
            return f"a mapping of {', '.join(each)}"
        return f"{article} mapping, each {phrase(schema['additionalProperties'])}"
    bounds = [f"{sign} {schema[key]:g}" for sign, key in _SIGNS.items() if schema.get(key, MAX_INTEGER) != MAX_INTEGER]
    return " ".join([_KINDS.get(schema.get("type", ""), "a value"), " and ".join(bounds)]).strip()
