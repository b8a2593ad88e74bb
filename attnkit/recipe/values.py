"""From the text of a node to a value of the type that the schema wants.

The type decides what the text means: `1e-3` is a number where a number is wanted and text where
text is wanted; `no` is never a boolean.
"""

import math
import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from attnkit.recipe.problems import COMMAND_LINE, Position
from attnkit.recipe.schema import LARGEST
from attnkit.recipe.yaml_nodes import Mapping, Node, Scalar, Sequence
from attnkit.text import nearest, quoted

_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]{0,18})")
_NUMBER = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?")
_ORDER: tuple[Any, ...] = (types.NoneType, bool, Literal, int, float, tuple, list, Any, dict, str)


class Mismatch(Exception):
    """A node is not what the type wants; both are the innermost ones that do not fit."""

    def __init__(self, node: Node, hint: Any) -> None:
        super().__init__()
        self.node, self.hint = node, hint


class Range(NamedTuple):
    """Bounds of a number or of a list's length, as pydantic's metadata gives them."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None


def unwrap(hint: Any) -> tuple[Any, Range]:
    """A type without Annotated, and its bounds."""
    found: dict[str, Any] = {}
    while get_origin(hint) is Annotated:
        hint, *metadata = get_args(hint)
        found |= _bounds(metadata)
    return hint, Range(**found)


def hint_of(field: FieldInfo) -> Any:
    """The type of a schema field with its bounds."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def _bounds(metadata: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in metadata:
        if isinstance(item, FieldInfo):
            found |= _bounds(item.metadata)
        else:
            found |= {n: getattr(item, n) for n in Range._fields if hasattr(item, n)}
    return found


def typed(node: Node, hint: Any) -> Any:
    """The value of a node as `hint` wants it; bounds are left to pydantic.  Raises Mismatch."""
    base, _ = unwrap(hint)
    origin = get_origin(base) or base
    if origin in (Union, types.UnionType):
        return _first(node, hint)
    if origin in (tuple, list):
        return _items(node, hint)
    if origin is Any or origin is dict:
        return plain(node)
    if hasattr(origin, "_fields"):
        return _record(node, origin)
    if not isinstance(node, Scalar):
        raise Mismatch(node, hint)
    return _scalar(node, hint)


def _record(node: Node, record: Any) -> dict[str, Any]:
    """Some of the fields of a NamedTuple, as a mapping."""
    if not isinstance(node, Mapping) or not set(node.fields) <= set(record._fields):
        raise Mismatch(node, record)
    hints = get_type_hints(record)
    return {key: typed(item, hints[key]) for key, (_, item) in node.fields.items()}


def _first(node: Node, hint: Any) -> Any:
    """The first member of a union that fits, text last because everything fits it."""
    members = sorted(get_args(unwrap(hint)[0]), key=_rank)
    # a lone text with a comma may be a path: only brackets make it a list where text is allowed
    split = str not in members
    inner: Mismatch | None = None
    for member in members:
        kind = get_origin(unwrap(member)[0]) or unwrap(member)[0]
        if not split and kind in (tuple, list) and isinstance(node, Scalar):
            continue
        try:
            return typed(node, member)
        except Mismatch as mismatch:
            # a list that fits but for one item: tell of the item
            inner = inner or (mismatch if mismatch.node is not node else None)
    raise inner or Mismatch(node, hint)


def _rank(member: Any) -> int:
    base = unwrap(member)[0]
    kind = get_origin(base) or base
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def _items(node: Node, hint: Any) -> tuple[Any, ...]:
    """A list, or on the command line also `1,2`."""
    items = node.items if isinstance(node, Sequence) else split_words(node)
    if items is None:
        raise Mismatch(node, hint)
    base = unwrap(hint)[0]
    inner = get_args(base) or (Any, ...)
    if get_origin(base) is list or inner[-1] is Ellipsis:
        return tuple(typed(item, inner[0]) for item in items)
    if len(items) != len(inner):
        raise Mismatch(node, hint)
    return tuple(typed(item, kind) for item, kind in zip(items, inner, strict=True))


def split_words(node: Node) -> list[Node] | None:
    """The items of `1,2` from the command line, or None for anything else."""
    if not isinstance(node, Scalar) or node.place != COMMAND_LINE or not node.text:
        return None
    return [Scalar(COMMAND_LINE, word.strip()) for word in node.text.split(",")]


def _scalar(node: Scalar, hint: Any) -> Any:
    text, base = node.text, unwrap(hint)[0]
    if get_origin(base) is Literal:
        for choice in get_args(base):
            if (str(choice).lower() if isinstance(choice, bool) else str(choice)) == text:
                return choice
        if node.null and None in get_args(base):
            return None
    elif base is str:
        if not node.null:
            return text
    elif not node.plain:
        raise Mismatch(node, hint)
    elif base in (None, types.NoneType):
        if node.null:
            return None
    elif base is bool and text in ("true", "false"):
        return text == "true"
    elif base is int and _WHOLE.fullmatch(text):
        return int(text)
    elif base is float and _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    raise Mismatch(node, hint)


def plain(node: Node) -> Any:
    """A value where no type is known: null, true, false and numbers as JSON has them, else text."""
    if isinstance(node, Sequence):
        return tuple(plain(item) for item in node.items)
    if isinstance(node, Mapping):
        return {key: plain(item) for key, (_, item) in node.fields.items()}
    for kind in (types.NoneType, bool, int, float, str):
        try:
            return _scalar(node, kind)
        except Mismatch:
            continue
    return node.text


def phrase(hint: Any) -> str:
    """What a type wants, in words."""
    base, bounds = unwrap(hint)
    kind = get_origin(base) or base
    if kind in (Union, types.UnionType):
        return " or ".join(phrase(member) for member in get_args(base))
    if kind is Literal:
        words = [_word(choice) for choice in get_args(base)]
        return f"one of {', '.join(words)}" if len(words) > 1 else words[0]
    if kind in (tuple, list):
        inner = get_args(base) or (Any,)
        if kind is list or inner[-1] is Ellipsis or len(inner) == 1:
            return (
                f"a list{' of at least one' if bounds.min_length else ''}: [{_of(inner[0])}, ...]"
            )
        return f"a list of {len(inner)}: [{', '.join(_of(item) for item in inner)}]"
    if hasattr(kind, "_fields"):
        return f"a mapping of {', '.join(kind._fields)}"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if kind in (None, types.NoneType):
        return "null"
    return names.get(kind, "a value") + _range_words(bounds)


def _of(hint: Any) -> str:
    words = phrase(hint)
    return words.removeprefix("a ")


def _word(choice: Any) -> str:
    if choice is None:
        return "null"
    return str(choice).lower() if isinstance(choice, bool) else str(choice)


def _range_words(bounds: Range) -> str:
    signs = ((">=", bounds.ge), (">", bounds.gt), ("<=", bounds.le), ("<", bounds.lt))
    told = [f"{sign} {limit:g}" for sign, limit in signs if limit is not None and limit != LARGEST]
    return f" {' and '.join(told)}" if told else ""


def refusal(node: Node, hint: Any, default: Any = ...) -> tuple[Position, str]:
    """Where and why a node's value is refused: what is wanted, what was found, what would do."""
    culprit = node
    try:
        typed(node, hint)
    except Mismatch as mismatch:
        culprit, hint = mismatch.node, mismatch.hint
    advice = next(_advice(culprit, hint), None)
    if advice is None and default is not ... and default is not None:
        advice = f"the default is {shown(default)}"
    text = f"must be {phrase(hint)}, got {written(culprit)}"
    return culprit.place, f"{text}; {advice}" if advice else text


def written(node: Node) -> str:
    """A node in a message."""
    if isinstance(node, Sequence):
        return f"a list of {len(node.items)}" if node.items else "an empty list"
    if isinstance(node, Mapping):
        return "a mapping"
    if node.null:
        return "null" if node.text else "nothing"
    return quoted(node.text)


def shown(value: Any) -> str:
    """A value as a recipe would write it, on one line."""
    if value is None or isinstance(value, bool):
        return _word(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(shown(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    return quoted(str(value), 80)[1:-1]


def _advice(culprit: Node, hint: Any) -> Iterator[str]:
    """Nearest valid values, best first."""
    if not isinstance(culprit, Scalar):
        return
    if _wants_list(hint) and any(_fits(culprit.text, inner) for inner in _leaves(hint)):
        yield f"write [{quoted(culprit.text)[1:-1]}]"
    if culprit.plain is False and any(_fits(culprit.text, member) for member in _leaves(hint)):
        yield "remove the quotes"
    for leaf in _leaves(hint):
        base, bounds = unwrap(leaf)
        if get_origin(base) is Literal:
            close = nearest(culprit.text, [_word(choice) for choice in get_args(base)])
            if close:
                yield f"did you mean {close}?"
        elif base is bool and culprit.text.lower() in _BOOLEANS:
            yield f"write {_BOOLEANS[culprit.text.lower()]}"
        elif base in (int, float):
            yield from _near_number(culprit.text, base, bounds)


_BOOLEANS = dict.fromkeys(("yes", "on", "y", "1", "true"), "true") | dict.fromkeys(
    ("no", "off", "n", "0", "false"), "false"
)


def _fits(text: str, hint: Any) -> bool:
    if unwrap(hint)[0] in (str, types.NoneType):
        return False
    try:
        typed(Scalar(COMMAND_LINE, text), hint)
    except Mismatch:
        return False
    return True


def _wants_list(hint: Any) -> bool:
    base = unwrap(hint)[0]
    return get_origin(base) in (tuple, list)


def _leaves(hint: Any) -> Iterator[Any]:
    """The single types inside a type."""
    base, _ = unwrap(hint)
    kind = get_origin(base)
    if kind in (Union, types.UnionType, tuple, list):
        for member in get_args(base):
            if member is not Ellipsis:
                yield from _leaves(member)
    else:
        yield hint


def _near_number(text: str, base: type, bounds: Range) -> Iterator[str]:
    """The valid number nearest to what was written."""
    try:
        value = float(text.replace("_", "")) if len(text) <= 400 else math.nan
    except ValueError:
        return
    if math.isnan(value):
        return
    low = bounds.ge if bounds.ge is not None else -math.inf
    high = bounds.le if bounds.le is not None else math.inf
    near = min(max(value, low), high)
    too_far = (
        bounds.gt is not None and near <= bounds.gt or bounds.lt is not None and near >= bounds.lt
    )
    if too_far or math.isinf(near):
        return
    if near != value:
        yield f"the nearest valid value is {near:.15g}"
    elif base is int:
        yield f"write {round(near)}"
    else:
        yield f"write {near!r}"
