"""Facts of a mechanism, read from the text of its file, which is neither imported nor run.

Conventions of such a file: the docstring starts with "Name: formula.", and has a sentence that starts with "Source:"
and a paragraph that starts with "Worked number:"; the last class is the mechanism; its class attributes and the
defaults of its keyword-only arguments are literals.  Annotations of options become pydantic types.  An annotation that
is not built from bool, int, float, str, None, Literal, tuple, list and unions accepts every value, which the mechanism
checks itself.
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
"""Base class of all mechanisms."""
_SCORED = (_PACKAGE / "attention" / "scored.py", "Scored")
_BEYOND_SCORES = ("added", "allowed", "answer", "forward", "normalize")
"""Methods whose definition makes a scored mechanism more than its scores, so that it cannot be mixed."""
_Class: TypeAlias = tuple[Path, ast.ClassDef]


@plain_dataclass(frozen=True)
class Option:
    type: Any
    """Type against which pydantic validates values."""
    default: Any = None
    required: bool = False


@dataclass(frozen=True, config=ConfigDict(strict=True))
class MechanismSpec:
    """Facts that a mechanism's file states in literals."""

    word: str
    path: Path
    doc: str
    origin: str = "attnkit"
    """Provider of the mechanism: attnkit, a package, or the file of a plug-in."""
    options: Mapping[str, Option] = field(default_factory=dict)
    mixable: bool = False
    """Whether its scores can be mixed with those of other mechanisms: it has no mask of its own and no parts."""
    uses: str = "qkv"
    facts_with: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Option -> value -> facts that differ with that value."""
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Option -> facts that differ if the option is set."""
    causal: bool = True
    encoder: bool = True
    cross: bool = True
    limit: int | str | None = None
    positions: tuple[str, ...] = ()
    map: str = "exact"
    cost: str = ""
    quadratic: bool = True
    """Whether the time is proportional to the number of pairs of queries and keys."""
    state: str = "growing"
    by_distance: bool = False
    remembers_queries: bool = False
    why: str = ""
    onnx: tuple[str, ...] = ("encoder", "decoder", "cross")
    """Roles in which it can be exported to ONNX."""
    ahead: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Option -> values with which it is not causal."""
    composite: str = ""
    """Option that lists the parts of a mechanism made of others; otherwise empty."""
    layered: bool = False
    """Whether the parts alternate, one per layer, instead of being mixed in every layer."""
    pairs: Mapping[str, str] = field(default_factory=dict)
    """Option -> value that requires exactly two parts."""

    @property
    def title(self) -> str:
        """Name in words: the first line of the docstring up to the colon."""
        return self.doc.partition("\n")[0].partition(":")[0]

    @property
    def formula(self) -> str:
        """First line of the docstring after the colon, or ""."""
        return self.doc.partition("\n")[0].partition(":")[2].strip().rstrip(".")

    @property
    def source(self) -> str:
        """Text after "Source:" up to the end of the paragraph, or ""."""
        return self._paragraph(r"\b[Ss]ource:")

    @property
    def worked(self) -> str:
        """Text after "Worked number:" up to the end of the paragraph, or ""."""
        return self._paragraph(r"^Worked number:")

    def _paragraph(self, start: str) -> str:
        found = re.search(rf"{start}\s+(.*?)(?:\n\s*\n|\Z)", self.doc, re.DOTALL | re.MULTILINE)
        return " ".join(found[1].split()) if found else ""


_FACTS = [*get_type_hints(MechanismSpec)][6:]
"""Facts read from class attributes; the fields before them are obtained in other ways."""


def read(path: Path, word: str, origin: str = "attnkit") -> MechanismSpec:
    """Return the facts of a mechanism's file.

    Raises UsageError (file:line and the reason) if the file is not valid Python, its last class is not a mechanism, a
    fact or default is not a literal, or a fact has the wrong type.
    """
    chain = _chain(path)
    facts: dict[str, Any] = {}
    options: dict[str, Option] = {}
    scored, beyond_scores = False, False
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
                    beyond_scores |= scored and name in _BEYOND_SCORES
        scored |= (file, node.name) == _SCORED
    if not facts.get("layered"):
        options |= _shared(LayerOptions)
    if scored:
        options |= _shared(ScoreOptions)
    facts["mixable"] = scored and not beyond_scores and not facts.get("composite")
    doc = ast.get_docstring(_tree(path)) or ""
    try:
        return MechanismSpec(word=word, path=path, doc=doc, origin=origin, options=options, **facts)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        kind = formatannotation(get_type_hints(MechanismSpec)[name])
        raise UsageError(f"{path}: {name} must be of type {kind}, got {facts[name]!r}") from None


def _options(file: Path, arguments: ast.arguments) -> dict[str, Option]:
    """Return the options of a constructor: its keyword-only arguments."""
    options = {}
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        kind = annotation(ast.unparse(argument.annotation)) if argument.annotation else Any
        literal = None if default is None else _literal(file, argument.arg, default)
        options[argument.arg] = Option(kind, literal, required=default is None)
    return options


def mechanism_class(path: Path) -> str:
    """Return the name of the mechanism's class: the last class of its file."""
    return _chain(path)[0][1].name


@cache
def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:  # ValueError: a zero byte
        line = getattr(error, "lineno", None) or 1
        raise UsageError(f"{path}:{line}: not valid Python: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def clear_cache() -> None:
    """Clear the cache of parsed files, so that they are read again."""
    _tree.cache_clear()


def _classes(path: Path) -> list[_Class]:
    return [(path, node) for node in _tree(path).body if isinstance(node, ast.ClassDef)]


def _chain(path: Path) -> list[_Class]:
    """Return a file's mechanism and its ancestors, nearest first; raises UsageError unless the last is `Attention`."""
    chain = _classes(path)[-1:]
    while chain:
        file, node = chain[-1]
        if (file, node.name) == _ROOT:
            return chain
        bases = (_lookup(file, base.id) for base in node.bases if isinstance(base, ast.Name))
        parent = next((base for base in bases if base and base not in chain), None)
        if parent is None:
            break
        chain.append(parent)
    line = chain[0][1].lineno if chain else 1
    raise UsageError(
        f"{path}:{line}: no mechanism: the last class of the file must derive from Scored, Kernel "
        "or Attention, imported by `from attnkit.attention import ...`"
    )


def _lookup(path: Path, name: str) -> _Class | None:
    """Return a class by its name in a file, followed through imports from attnkit."""
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
    """Return the options that a class of `score_options` declares for many mechanisms."""
    types, defaults = get_type_hints(options, include_extras=True), options._field_defaults
    return {name: Option(types[name], defaults[name]) for name in options._fields}


_TYPES: dict[str, Any] = {"bool": bool, "int": int, "float": float, "str": str, "tuple": tuple}


@cache
def annotation(text: str) -> Any:
    """Return the type that an annotation names, or Any if it is not supported."""
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
            TypeAdapter(kind)  # raises if a value cannot be a choice
            return kind
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[item, end])) if ast.unparse(end) == "...":
            return _TYPES["tuple"][_type(item), ...]
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=items)):
            return _TYPES["tuple"][*map(_type, items)]
        case ast.Subscript(value=ast.Name(id="list" | "Sequence"), slice=inner):
            return _TYPES["tuple"][_type(inner), ...]  # everything in a recipe is frozen
    raise ValueError
