"""What a mechanism's file says of itself, read as text: nothing of it is imported or run.

The convention of such a file: the docstring begins with "Name: formula.", has a sentence that
begins with "Source:" and a paragraph that begins with "Worked number:"; the last class is the
mechanism; its class attributes and the defaults of its keyword-only arguments are literals.
Annotations of options become pydantic types; one that is not built from bool, int, float, str,
None, Literal, tuple, list, dict, unions and Any lets every value through, and the mechanism checks
it itself.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import formatannotation
from pathlib import Path
from types import EllipsisType, NoneType
from typing import Any, Literal, NamedTuple, Optional, Union, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from attnkit.errors import UsageError
from attnkit.recipe.score_options import EntropyScale, LayerOptions, ScoreOptions

_PACKAGE = Path(__file__).parents[1]
_ROOT = (_PACKAGE / "attention" / "base.py", "Attention")
"""The class that every mechanism derives from."""
_SCORED = (_PACKAGE / "attention" / "scored.py", "Scored")
_BEYOND_SCORES = ("added", "allowed", "answer", "forward", "normalise")
"""Methods by which a scored mechanism is more than its scores."""


@dataclass(frozen=True)
class Option:
    """One option of a mechanism: its annotation as written, its default, and its type."""

    annotation: str
    default: Any = None
    required: bool = False
    shared: Any = None
    """The type of an option that mechanisms share; the annotation says that of another."""

    @property
    def type(self) -> Any:
        """What a value must be, as pydantic reads it."""
        return self.shared or annotation(self.annotation)


@dataclass(frozen=True)
class MechanismSpec:
    """What a mechanism's file says of itself in literals."""

    word: str
    path: Path
    doc: str
    origin: str = "attnkit"
    """Who brings it: attnkit, a package, or the file of a plug-in."""
    uses: str = "qkv"
    facts_with: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Option -> value -> facts that differ with it."""
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Option -> facts that differ once it is given."""
    causal: bool = True
    encoder: bool = True
    cross: bool = True
    limit: int | str | None = None
    positions: tuple[str, ...] = ()
    map: str = "exact"
    cost: str = ""
    quadratic: bool = True
    """Whether the time grows as the number of pairs of queries and keys."""
    state: str = "growing"
    by_distance: bool = False
    why: str = ""
    onnx: tuple[str, ...] = ("encoder", "decoder", "cross")
    """Places in which it can be exported to ONNX."""
    ahead: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Option -> values with which it cannot hide the future."""
    composite: str = ""
    """The option that lists the parts, in a mechanism that is made of others."""
    layered: bool = False
    """Whether the parts take turns, one a layer, instead of being mixed in every layer."""
    pairs: Mapping[str, str] = field(default_factory=dict)
    """Option -> value that takes exactly two parts."""
    mixable: bool = False
    """Whether its scores can be mixed with others: no mask of its own, no parts."""
    options: Mapping[str, Option] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name in words: the first line of the docstring up to the colon."""
        return self.doc.partition("\n")[0].partition(":")[0]

    @property
    def formula(self) -> str:
        """The first line of the docstring after the colon; empty where there is none."""
        return self.doc.partition("\n")[0].partition(":")[2].strip().rstrip(".")

    @property
    def source(self) -> str:
        """What follows "Source:" up to the end of that paragraph; empty where it is missing."""
        return self._paragraph(r"\b[Ss]ource:")

    @property
    def worked(self) -> str:
        """The paragraph after "Worked number:"; empty where it is missing."""
        return self._paragraph(r"^Worked number:")

    def _paragraph(self, start: str) -> str:
        found = re.search(rf"{start}\s+(.*?)(?:\n\s*\n|\Z)", self.doc, re.DOTALL | re.MULTILINE)
        return " ".join(found[1].split()) if found else ""


class _Class(NamedTuple):
    path: Path
    node: ast.ClassDef

    @property
    def key(self) -> tuple[Path, str]:
        return self.path, self.node.name

    def method(self, name: str) -> ast.FunctionDef | None:
        """A method that the class itself defines."""
        methods = (item for item in self.node.body if isinstance(item, ast.FunctionDef))
        return next((method for method in methods if method.name == name), None)

    def attributes(self) -> Iterator[tuple[str, ast.expr]]:
        """Its class attributes that have a value."""
        for item in self.node.body:
            target = (
                item.targets[0] if isinstance(item, ast.Assign) else getattr(item, "target", None)
            )
            if isinstance(item, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name):
                yield from [(target.id, item.value)] if item.value else []


def read(path: Path, word: str, origin: str = "attnkit") -> MechanismSpec:
    """The facts of a mechanism's file.

    Raises UsageError (file:line and the reason) where it is no Python, where its last class is no
    mechanism, and where a fact or a default is not a literal or a fact has another type.
    """
    chain = _chain(path)
    facts: dict[str, Any] = {}
    for found in reversed(chain):
        for name, value in found.attributes():
            if name in _FACTS:
                facts[name] = _fact(found.path, name, value)
    options = {}
    constructors = ((found.path, found.method("__init__")) for found in chain)
    file, constructor = next((pair for pair in constructors if pair[1]), (path, None))
    if constructor:
        given = constructor.args
        for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            text = ast.unparse(argument.annotation) if argument.annotation else "Any"
            literal = None if default is None else _literal(file, argument.arg, default)
            options[argument.arg] = Option(text, literal, required=default is None)
    if not facts.get("layered"):
        options |= _shared(LayerOptions)
    scored = next((depth for depth, found in enumerate(chain) if found.key == _SCORED), None)
    if scored is not None:
        options |= _shared(ScoreOptions)
        more = [found.method(name) for found in chain[:scored] for name in _BEYOND_SCORES]
        facts["mixable"] = not any(more) and not facts.get("composite")
    doc = ast.get_docstring(_tree(path)) or ""
    return MechanismSpec(word=word, path=path, doc=doc, origin=origin, options=options, **facts)


def mechanism_class(path: Path) -> str:
    """The name of the class that is the mechanism: the last one of its file."""
    return _chain(path)[0].node.name


def forget() -> None:
    """Read files afresh when they are next wanted."""
    _tree.cache_clear()


@cache
def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        raise UsageError(f"{path}:{error.lineno or 1}: no valid Python: {error.msg}") from None
    except ValueError as error:  # a zero byte
        raise UsageError(f"{path}:1: no valid Python: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def _classes(path: Path) -> list[_Class]:
    return [_Class(path, node) for node in _tree(path).body if isinstance(node, ast.ClassDef)]


def _chain(path: Path) -> list[_Class]:
    """The mechanism of a file and its ancestors, nearest first, up to Attention.

    Raises UsageError where the last class does not descend from it.
    """
    classes = _classes(path)
    advice = "the last class of the file must derive from Scored, Kernel or Attention, imported"
    advice += " by `from attnkit.attention import ...`"
    if not classes:
        raise UsageError(f"{path}:1: no mechanism: the file has no class; {advice}")
    chain = [classes[-1]]
    while chain[-1].key != _ROOT:
        names = (base.id for base in chain[-1].node.bases if isinstance(base, ast.Name))
        bases = (_lookup(chain[-1].path, name) for name in names)
        above = next((base for base in bases if base and base not in chain), None)
        if above is None:
            node = classes[-1].node
            raise UsageError(f"{path}:{node.lineno}: class {node.name} is no mechanism; {advice}")
        chain.append(above)
    return chain


def _lookup(path: Path, name: str, steps: int = 8) -> _Class | None:
    """A class by its name in a file, followed through so many imports of attnkit at most."""
    for known in _classes(path):
        if known.node.name == name:
            return known
    for node in _tree(path).body:
        if not isinstance(node, ast.ImportFrom) or not steps or node.level:
            continue
        package, *inner = (node.module or "").split(".")
        file = _PACKAGE.joinpath(*inner).with_suffix(".py")
        file = file if file.is_file() else _PACKAGE.joinpath(*inner, "__init__.py")
        for alias in node.names if package == _PACKAGE.name and file.is_file() else ():
            if (alias.asname or alias.name) == name:
                return _lookup(file, alias.name, steps - 1)
    return None


_READ = {"word", "path", "doc", "origin", "options", "mixable"}  # the rest is written as it is
_FACTS = {
    name: TypeAdapter(kind)
    for name, kind in get_type_hints(MechanismSpec).items()
    if name not in _READ
}


def _literal(path: Path, name: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise UsageError(
            f"{path}:{node.lineno}: {name} must be a literal (such as True, 8 or 'T*S'), because"
            f" the file is read without running it, got {ast.unparse(node)}"
        ) from None


def _fact(path: Path, name: str, node: ast.expr) -> Any:
    value = _literal(path, name, node)
    try:
        return _FACTS[name].validate_python(value, strict=True)
    except ValidationError:
        kind = formatannotation(MechanismSpec.__annotations__[name])
        where = f"{path}:{node.lineno}"
        raise UsageError(f"{where}: {name} must be of type {kind}, got {value!r}") from None


@cache
def _shared(options: type[NamedTuple]) -> dict[str, Option]:
    """The options that many mechanisms share, as a class of `score_options` declares them."""
    hints, types = get_type_hints(options), get_type_hints(options, include_extras=True)
    return {
        name: Option(
            re.sub(r"\b[a-z_]+\.", "", formatannotation(hints[name])),
            options._field_defaults[name],
            shared=types[name],
        )
        for name in options._fields
    }


class _List:
    """A list is read as a tuple of any length, as everything in a recipe is frozen."""

    def __class_getitem__(cls, item: Any) -> Any:
        return tuple[item, ...]


_TYPES: dict[str, Any] = {
    "bool": bool, "int": int, "float": float, "str": str, "dict": dict, "tuple": tuple,
    "list": _List, "Sequence": _List, "Any": Any, "Optional": Optional, "Union": Union,
    "EntropyScale": EntropyScale,
}  # fmt: skip


@cache
def annotation(text: str) -> Any:
    """The type that an annotation names, or Any where it is not understood."""
    try:
        kind = _type(ast.parse(text, mode="eval").body)
        TypeAdapter(kind)  # refuses what pydantic cannot read
    except (SyntaxError, ValueError, TypeError, KeyError, PydanticUserError):
        return Any
    return kind


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
