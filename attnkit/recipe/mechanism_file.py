"""What a mechanism's file says of itself, read as text: nothing of it is imported or run.

The convention of such a file: the docstring begins with "Name: formula.", has a sentence that
begins with "Source:" and a paragraph that begins with "Worked number:"; the last class is the
mechanism; its class attributes and the defaults of its keyword-only arguments are literals.
Annotations of options become pydantic types; one that is not built from bool, int, float, str,
None, Literal, tuple, list and unions lets every value through, and the mechanism checks it itself.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from functools import cache
from inspect import formatannotation
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeAlias, Union, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from attnkit.errors import UsageError
from attnkit.recipe.score_options import LayerOptions, ScoreOptions

_PACKAGE = Path(__file__).parents[1]
_ROOT = (_PACKAGE / "attention" / "base.py", "Attention")
"""The class that every mechanism derives from."""
_SCORED = (_PACKAGE / "attention" / "scored.py", "Scored")
_BEYOND_SCORES = ("added", "allowed", "answer", "forward", "normalise")
"""Methods by which a scored mechanism is more than its scores."""
_Class: TypeAlias = tuple[Path, ast.ClassDef]


@plain_dataclass(frozen=True)
class Option:
    """One option of a mechanism."""

    type: Any
    """What a value must be, as pydantic reads it."""
    default: Any = None
    required: bool = False


@dataclass(frozen=True, config=ConfigDict(strict=True))
class MechanismSpec:
    """What a mechanism's file says of itself in literals."""

    word: str
    path: Path
    doc: str
    origin: str = "attnkit"
    """Who brings it: attnkit, a package, or the file of a plug-in."""
    options: Mapping[str, Option] = field(default_factory=dict)
    mixable: bool = False
    """Whether its scores can be mixed with others: no mask of its own, no parts."""
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
    remembers_queries: bool = False
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


_FACTS = [*get_type_hints(MechanismSpec)][6:]
"""What class attributes say; the fields before them are read in other ways."""


def read(path: Path, word: str, origin: str = "attnkit") -> MechanismSpec:
    """The facts of a mechanism's file.

    Raises UsageError (file:line and the reason) where it is no Python, where its last class is no
    mechanism, and where a fact or a default is not a literal or a fact has another type.
    """
    chain = _chain(path)
    facts: dict[str, Any] = {}
    options: dict[str, Option] = {}
    scored, more = False, False
    for file, node in reversed(chain):
        for item in node.body:
            match item:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in _FACTS:
                    facts[name] = _literal(file, name, value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name in _FACTS:
                    facts[name] = _literal(file, name, value)
                case ast.FunctionDef(name="__init__", args=arguments):
                    options = _options(file, arguments)
                case ast.FunctionDef(name=name):
                    more |= scored and name in _BEYOND_SCORES
        scored |= (file, node.name) == _SCORED
    if not facts.get("layered"):
        options |= _shared(LayerOptions)
    if scored:
        options |= _shared(ScoreOptions)
    facts["mixable"] = scored and not more and not facts.get("composite")
    doc = ast.get_docstring(_tree(path)) or ""
    try:
        return MechanismSpec(word=word, path=path, doc=doc, origin=origin, options=options, **facts)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        kind = formatannotation(get_type_hints(MechanismSpec)[name])
        raise UsageError(f"{path}: {name} must be of type {kind}, got {facts[name]!r}") from None


def _options(file: Path, arguments: ast.arguments) -> dict[str, Option]:
    """The options that a constructor takes: its keyword-only arguments."""
    options = {}
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        kind = annotation(ast.unparse(argument.annotation)) if argument.annotation else Any
        literal = None if default is None else _literal(file, argument.arg, default)
        options[argument.arg] = Option(kind, literal, required=default is None)
    return options


def mechanism_class(path: Path) -> str:
    """The name of the class that is the mechanism: the last one of its file."""
    return _chain(path)[0][1].name


@cache
def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:  # a zero byte is a ValueError
        line = getattr(error, "lineno", None) or 1
        raise UsageError(f"{path}:{line}: no valid Python: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def forget() -> None:
    """Read files afresh when they are next wanted."""
    _tree.cache_clear()


def _classes(path: Path) -> list[_Class]:
    return [(path, node) for node in _tree(path).body if isinstance(node, ast.ClassDef)]


def _chain(path: Path) -> list[_Class]:
    """The mechanism of a file and its ancestors, nearest first, up to Attention.

    Raises UsageError where the last class does not descend from it.
    """
    chain = _classes(path)[-1:]
    while chain:
        file, node = chain[-1]
        if (file, node.name) == _ROOT:
            return chain
        bases = (_lookup(file, base.id) for base in node.bases if isinstance(base, ast.Name))
        above = next((base for base in bases if base and base not in chain), None)
        if above is None:
            break
        chain.append(above)
    line = chain[0][1].lineno if chain else 1
    raise UsageError(
        f"{path}:{line}: no mechanism: the last class of the file must derive from Scored, Kernel "
        "or Attention, imported by `from attnkit.attention import ...`"
    )


def _lookup(path: Path, name: str) -> _Class | None:
    """A class by its name in a file, followed through imports of attnkit."""
    for found in _classes(path):
        if found[1].name == name:
            return found
    for node in _tree(path).body:
        if isinstance(node, ast.ImportFrom) and not node.level:
            package, *inner = (node.module or "").split(".")
            file = _PACKAGE.joinpath(*inner).with_suffix(".py")
            file = file if file.is_file() else _PACKAGE.joinpath(*inner, "__init__.py")
            for alias in node.names if package == _PACKAGE.name and file.is_file() else ():
                if (alias.asname or alias.name) == name and file != path:
                    return _lookup(file, alias.name)
    return None


def _literal(path: Path, name: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise UsageError(
            f"{path}:{node.lineno}: {name} must be a literal (such as True, 8 or 'T*S'), because"
            f" the file is read without running it, got {ast.unparse(node)}"
        ) from None


@cache
def _shared(options: type[NamedTuple]) -> dict[str, Option]:
    """The options that many mechanisms share, as a class of `score_options` declares them."""
    types, defaults = get_type_hints(options, include_extras=True), options._field_defaults
    return {name: Option(types[name], defaults[name]) for name in options._fields}


_TYPES: dict[str, Any] = {"bool": bool, "int": int, "float": float, "str": str, "tuple": tuple}


@cache
def annotation(text: str) -> Any:
    """The type that an annotation names, or Any where it is not understood."""
    try:
        return _type(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, KeyError, PydanticUserError):
        return Any


def _type(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None):
            return NoneType
        case ast.Name(id=name):
            return _TYPES[name]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return Union[_type(left), _type(right)]  # noqa: UP007
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            choices = ast.literal_eval(inner)
            kind: Any = Literal[choices]
            TypeAdapter(kind)  # refuses what cannot be a choice
            return kind
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[item, end])) if ast.unparse(end) == "...":
            return _TYPES["tuple"][_type(item), ...]
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=items)):
            return _TYPES["tuple"][*map(_type, items)]
        case ast.Subscript(value=ast.Name(id="list" | "Sequence"), slice=inner):
            return _TYPES["tuple"][_type(inner), ...]  # everything in a recipe is frozen
    raise ValueError
