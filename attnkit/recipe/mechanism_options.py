"""Options of attention mechanisms: their types read from annotations as text, without eval.

An annotation that is not built from bool, int, float, str, None, Literal, tuple, list, unions and
Any lets every plain value through; the mechanism then checks it itself.
"""

import ast
import types
from collections.abc import Sequence
from functools import cache, reduce
from operator import or_
from typing import Any, Literal, NamedTuple

from attnkit.errors import RecipeError, UsageError
from attnkit.recipe import mechanism_registry, yaml_nodes
from attnkit.recipe.mechanism_file import Facts
from attnkit.recipe.problems import COMMAND_LINE, Key, Problems
from attnkit.recipe.score_options import EntropyScale
from attnkit.recipe.settings import Setting
from attnkit.recipe.values import Mismatch, refusal, split_words, typed, written
from attnkit.recipe.yaml_nodes import Mapping, Node, Scalar, read_value
from attnkit.text import nearest, quoted

_NAMES: dict[str, Any] = {
    "bool": bool, "int": int, "float": float, "str": str, "Any": Any, "EntropyScale": EntropyScale,
}  # fmt: skip


@cache
def annotation(text: str) -> Any:
    """The type that an annotation names, or Any where it is not understood."""
    try:
        return _type(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError):
        return Any


def _type(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None):
            return types.NoneType
        case ast.Constant(value=str(text)):
            return annotation(text)
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in _NAMES:
            return _NAMES[name]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([_type(left), _type(right)])
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=inner):
            return _generic(name, inner.elts if isinstance(inner, ast.Tuple) else [inner])
    return Any


def _generic(name: str, inner: list[ast.expr]) -> Any:
    if name == "Literal":
        return Literal[tuple(ast.literal_eval(item) for item in inner)]
    if name in ("Optional", "Union"):
        ends = [types.NoneType] if name == "Optional" else []
        return _union([*map(_type, inner), *ends])
    if name in ("tuple", "list", "Sequence") and inner:
        many = name != "tuple" or isinstance(inner[-1], ast.Constant)
        if many:
            return tuple[_type(inner[0]), ...]  # type: ignore[misc]
        return tuple[tuple(_type(item) for item in inner)]  # type: ignore[misc]
    return Any


def _union(members: list[Any]) -> Any:
    return Any if Any in members else reduce(or_, members)


class OptionValue(NamedTuple):
    """The typed value of an option."""

    value: Any


def option_value(
    facts: Facts, name: str, told: Key, setting: Setting, problems: Problems
) -> OptionValue | None:
    """The typed value of one option, or None where a problem was noted under the key `told`."""
    option = facts.options.get(name)
    if option is None:
        problems.add(setting.place, told, lambda: unknown_option(facts, name))
        return None
    if name == facts.composite:
        return _parts(facts, told, setting.node, problems)
    hint = annotation(option.annotation)
    try:
        return OptionValue(typed(setting.node, hint))
    except Mismatch:
        default = ... if option.required else option.default
        place, text = refusal(setting.node, hint, default)
        problems.add(place, told, text)
        return None


def from_words(facts: Facts, words: Sequence[str]) -> dict[str, Any]:
    """Typed options from KEY=VALUE words of a command line; a value may be a YAML list or mapping.

    Raises UsageError with one line a problem, also for an option that is missing.
    """
    problems, found = Problems(), {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"{quoted(word)} must be KEY=VALUE, an option of {facts.word}")
        setting = Setting(read_value(text), COMMAND_LINE)
        if value := option_value(facts, name.strip(), (name.strip(),), setting, problems):
            found[name.strip()] = value.value
    try:
        problems.stop()
    except RecipeError as error:
        raise UsageError(str(error)) from error
    missing = [name for name, o in facts.options.items() if o.required and name not in found]
    if missing:
        raise UsageError(f"{facts.word} needs {', '.join(missing)}; write {missing[0]}=VALUE")
    return found


def _parts(facts: Facts, told: Key, node: Node, problems: Problems) -> OptionValue | None:
    """The parts of a composite mechanism, each with the types that its own file gives."""
    items = node.items if isinstance(node, yaml_nodes.Sequence) else split_words(node)
    if items is None or len(items) < 2:
        example = "[scaled-dot, synthesizer-random]"
        text = f"must be a list of two mechanisms or more, such as {example}, got {written(node)}"
        problems.add(node.place, told, text)
        return None
    found = [_part(facts, told, item, problems) for item in items]
    return None if None in found else OptionValue(tuple(found))


def _part(facts: Facts, told: Key, node: Node, problems: Problems) -> str | dict[str, Any] | None:
    """One part: its word, or its word and its options; None where a problem was noted."""
    fields = node.fields if isinstance(node, Mapping) else {"name": (node.place, node)}
    name = fields["name"][1] if "name" in fields else node
    if not isinstance(name, Scalar) or name.null:
        text = f"a part must be a word or {{name: word}} with its options, got {written(node)}"
        problems.add(node.place, told, text)
        return None
    try:
        known = mechanism_registry.part(name.text, facts.word)
    except UsageError as error:
        problems.add(name.place, told, str(error))
        return None
    options: dict[str, Any] = {}
    for option, (place, value) in fields.items():
        if option == "name":
            continue
        key = (*told, option)
        if option not in known.options:
            problems.add(place, key, mechanism_registry.no_option(name.text, option, facts.word))
            return None
        found = option_value(known, option, key, Setting(value, place), problems)
        if found is None:
            return None
        options[option] = found.value
    return {"name": name.text, **options} if options else name.text


def unknown_option(facts: Facts, name: str) -> str:
    """Why an option is refused, and the nearest one."""
    text = f"{facts.word} has no option {quoted(name)}"
    if not facts.options:
        return f"{text}; it has none"
    close = nearest(name, facts.options)
    return f"{text}; " + (
        f"did you mean {close}?" if close else f"it has {', '.join(facts.options)}"
    )
