"""Options of attention mechanisms: their annotations, read as text, become pydantic types.

An annotation that is not built from bool, int, float, str, None, Literal, tuple, list, dict, unions
and Any lets every value through; the mechanism then checks it itself.
"""

import ast
from collections.abc import Sequence
from functools import cache
from types import EllipsisType, NoneType
from typing import Annotated, Any, Literal, Optional, Union, get_type_hints

from pydantic import AfterValidator, ConfigDict, PydanticUserError, TypeAdapter, create_model

from attnkit.errors import RecipeError, UsageError
from attnkit.recipe import mechanism_registry, yaml_nodes
from attnkit.recipe.issues import COMMAND_LINE, Issues, Position, ValidationIssue
from attnkit.recipe.mechanism_file import Facts
from attnkit.recipe.score_options import EntropyScale
from attnkit.recipe.values import read, split_words, written
from attnkit.recipe.yaml_nodes import Mapping, Node, Scalar, read_value
from attnkit.text import nearest, quoted


class _List:
    """A list is read as a tuple of any length, as everything in a recipe is frozen."""

    def __class_getitem__(cls, item: Any) -> Any:
        return tuple[item, ...]


_entropy_fields: dict[str, Any] = {
    name: (kind, EntropyScale._field_defaults[name])
    for name, kind in get_type_hints(EntropyScale).items()
}
_EntropyScale = create_model(
    "EntropyScale",
    __config__=ConfigDict(extra="forbid"),
    __doc__="How scores grow with the number of keys.",
    **_entropy_fields,
)
LARGEST_OPTION = 2**20
"""No option needs a larger whole number: a layer of that size would fill any memory."""
_TYPES: dict[str, Any] = {
    "bool": bool, "int": int, "float": float, "str": str, "dict": dict, "tuple": tuple,
    "list": _List, "Sequence": _List, "Any": Any, "Optional": Optional, "Union": Union,
    # stays the mapping that was written, so that a resolved recipe says no more than its author
    "EntropyScale": Annotated[
        _EntropyScale, AfterValidator(lambda scale: scale.model_dump(exclude_unset=True))
    ],
}  # fmt: skip


@cache
def annotation(text: str) -> Any:
    """The type that an annotation names, or Any where it is not understood."""
    try:
        return _type(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, KeyError):
        return Any


def _type(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None):
            return NoneType
        case ast.Constant(value=EllipsisType()):
            return ...
        case ast.Constant(value=str(text)):
            return annotation(text)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _TYPES[name]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return Union[_type(left), _type(right)]  # noqa: UP007
        case ast.Subscript(value=ast.Name(id="Literal") | ast.Attribute(attr="Literal")):
            return Literal[ast.literal_eval(node.slice)]
        case ast.Subscript(value=outer, slice=ast.Tuple(elts=[first, *rest])):
            return _type(outer)[_type(first), *map(_type, rest)]
        case ast.Subscript(value=outer, slice=inner):
            return _type(outer)[_type(inner)]
    raise ValueError


@cache
def option_type(text: str) -> TypeAdapter[Any]:
    """What reads the values of an option with this annotation."""
    try:
        return TypeAdapter(annotation(text))
    except PydanticUserError:
        return TypeAdapter(Any)


def option_value(facts: Facts, name: str, place: Position, node: Node) -> Any:
    """The value of one option; `place` is that of its key.

    Raises ValidationIssue: there is no such option, or it does not take this value.
    """
    option = facts.options.get(name)
    if option is None:
        raise ValidationIssue(lambda: _unknown_option(facts, name), place=place)
    if name == facts.composite:
        items = node.items if isinstance(node, yaml_nodes.Sequence) else split_words(node)
        if len(items) < 2:
            text = "must be a list of two mechanisms or more, such as"
            example = "[scaled-dot, synthesizer-random]"
            raise ValidationIssue(f"{text} {example}, got {written(node)}", place=node.place)
        return tuple(_part(facts.word, item) for item in items)
    value = read(node, option_type(option.annotation), option.default)
    if type(value) is int and value > LARGEST_OPTION:
        raise ValidationIssue(f"must be at most {LARGEST_OPTION}, got {value}", place=node.place)
    return value


def from_words(facts: Facts, words: Sequence[str]) -> dict[str, Any]:
    """Options of a mechanism from KEY=VALUE words of a command line; a value may be YAML.

    Raises UsageError: one line for each word that is refused, or an option is missing.
    """
    nodes: dict[str, Node] = {}
    for word in words:
        name, equals, text = (part.strip() for part in word.partition("="))
        if not equals:
            raise UsageError(f"{quoted(word)} must be KEY=VALUE, an option of {facts.word}")
        if name in nodes:
            raise UsageError(f"{name} is given twice; give it once")
        nodes[name] = read_value(text)
    return from_nodes(facts, nodes)


def from_nodes(facts: Facts, nodes: dict[str, Node]) -> dict[str, Any]:
    """Options of a mechanism that were written on a command line; raises as `from_words`."""
    issues, options = Issues(), {}
    for name, node in nodes.items():
        try:
            options[name] = option_value(facts, name, COMMAND_LINE, node)
        except ValidationIssue as issue:
            issues.add(COMMAND_LINE, (name, *issue.key), issue.text)
    try:
        issues.stop()
    except RecipeError as error:
        raise UsageError(str(error)) from error
    missing = [name for name, o in facts.options.items() if o.required and name not in options]
    if missing:
        raise UsageError(f"{facts.word} needs {', '.join(missing)}; write {missing[0]}=VALUE")
    return options


def _part(composite: str, node: Node) -> str | dict[str, Any]:
    """One part: its word, or its word and its options."""
    fields = node.fields if isinstance(node, Mapping) else {"name": (node.place, node)}
    _, name = fields.get("name", (node.place, None))
    if not isinstance(name, Scalar) or name.null:
        text = f"a part must be a word or {{name: word}} with its options, got {written(node)}"
        raise ValidationIssue(text, place=node.place)
    try:
        facts = mechanism_registry.part(name.text, composite)
    except UsageError as error:
        raise ValidationIssue(str(error), place=name.place) from None
    options: dict[str, Any] = {}
    for option, (place, value) in fields.items():
        if option == "name":
            continue
        try:
            if option not in facts.options:
                raise ValidationIssue(
                    mechanism_registry.no_option(name.text, option, composite), place=place
                )
            options[option] = option_value(facts, option, place, value)
        except ValidationIssue as issue:
            raise issue.below(option) from None
    return {"name": name.text, **options} if options else name.text


def _unknown_option(facts: Facts, name: str) -> str:
    """Why an option is refused, and the nearest one."""
    text = f"{facts.word} has no option {quoted(name)}"
    if not facts.options:
        return f"{text}; it has none"
    close = nearest(name, facts.options)
    known = f"did you mean {close}?" if close else f"it has {', '.join(facts.options)}"
    return f"{text}; {known}"
