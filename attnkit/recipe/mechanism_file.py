"""What a mechanism's file says of itself, read as text: nothing of it is imported or run.

The convention of such a file: the docstring begins with "Name: formula.", has a sentence that
begins with "Source:" and a paragraph that begins with "Worked number:"; the last class is the
mechanism; its class attributes and the defaults of its keyword-only arguments are literals.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from attnkit.errors import UsageError

_PACKAGE = Path(__file__).parents[1]
_ROOT = (_PACKAGE / "attention" / "base.py", "Attention")
"""The class that every mechanism derives from."""
_SCORED = (_PACKAGE / "attention" / "scored.py", "Scored")
_MODIFIERS = (_PACKAGE / "recipe" / "score_options.py", "ScoreOptions")
"""The options that every scored mechanism takes."""


_BEYOND_SCORES = ("allowed", "forward")
"""Methods by which a scored mechanism is more than its scores."""


@dataclass(frozen=True)
class Option:
    """One option of a mechanism: its annotation as written, and its default."""

    annotation: str
    default: Any = None
    required: bool = False


@dataclass(frozen=True)
class Facts:
    """What a mechanism's file says of itself in literals."""

    word: str
    path: Path
    doc: str
    origin: str = "attnkit"
    """Who brings it: attnkit, a package, or the file of a plug-in."""
    uses: str = "qkv"
    uses_with: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Option -> value -> what is read with that value, where it differs from `uses`."""
    causal: bool = True
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
        found = re.search(r"\b[Ss]ource:\s+(.*?)(?:\n\s*\n|\Z)", self.doc, re.DOTALL)
        return " ".join(found[1].split()) if found else ""

    @property
    def worked(self) -> str:
        """The paragraph after "Worked number:"; empty where it is missing."""
        found = re.search(r"^Worked number:\s+(.*?)(?:\n\s*\n|\Z)", self.doc, re.DOTALL | re.M)
        return " ".join(found[1].split()) if found else ""


class _Class(NamedTuple):
    """A class where it is defined."""

    path: Path
    node: ast.ClassDef

    @property
    def key(self) -> tuple[Path, str]:
        return self.path, self.node.name


def read(path: Path, word: str, origin: str = "attnkit") -> Facts:
    """The facts of a mechanism's file.

    Raises UsageError (file:line and the reason) where it is no Python, where its last class is no
    mechanism, and where a fact or a default is not a literal.
    """
    chain = _chain(path)
    known: dict[str, Any] = {}
    for found in reversed(chain):
        known |= _literals(found)
    options = next((_keywords(found) for found in chain if _constructor(found.node)), {})
    scored = next((depth for depth, found in enumerate(chain) if found.key == _SCORED), None)
    if scored is not None:
        options |= _fields(_class(*_MODIFIERS))
        own = [_method(found.node, name) for found in chain[:scored] for name in _BEYOND_SCORES]
        known["mixable"] = not any(own) and not known.get("composite")
    doc = ast.get_docstring(_tree(path)) or ""
    return Facts(word=word, path=path, doc=doc, origin=origin, options=options, **known)


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


def _class(path: Path, name: str) -> _Class:
    """A class that a file of attnkit is known to have."""
    return next(c for c in _classes(path) if c.node.name == name)


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
        above = next((c for c in _bases(chain[-1]) if c not in chain), None)
        if above is None:
            node = classes[-1].node
            raise UsageError(f"{path}:{node.lineno}: class {node.name} is no mechanism; {advice}")
        chain.append(above)
    return chain


def _bases(found: _Class) -> Iterator[_Class]:
    """The base classes that the same file or a file of attnkit defines."""
    for base in found.node.bases:
        if isinstance(base, ast.Name) and (above := _lookup(found.path, base.id, 8)):
            yield above


def _lookup(path: Path, name: str, steps: int) -> _Class | None:
    """A class by its name in a file, followed through at most so many imports."""
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


def _literals(found: _Class) -> dict[str, Any]:
    """The class attributes that are facts."""
    values = {}
    for item in found.node.body:
        if not isinstance(item, ast.Assign | ast.AnnAssign) or item.value is None:
            continue
        target = item.targets[0] if isinstance(item, ast.Assign) else item.target
        if isinstance(target, ast.Name) and target.id in _FACTS:
            values[target.id] = _literal(found.path, target.id, item.value)
    return values


_FACTS = {*Facts.__dataclass_fields__} - {"word", "path", "doc", "origin", "options", "mixable"}


def _literal(path: Path, name: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise UsageError(
            f"{path}:{node.lineno}: {name} must be a literal (such as True, 8 or 'T*S'), because"
            f" the file is read without running it, got {ast.unparse(node)}"
        ) from None


def _constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    return _method(node, "__init__")


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == name:
            return item
    return None


def _keywords(found: _Class) -> dict[str, Option]:
    """The keyword-only arguments of a class's constructor."""
    constructor = _constructor(found.node)
    assert constructor is not None
    given = constructor.args
    return {
        argument.arg: _option(found.path, argument.arg, argument.annotation, default)
        for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    }


def _fields(found: _Class) -> dict[str, Option]:
    return {
        item.target.id: _option(found.path, item.target.id, item.annotation, item.value)
        for item in found.node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def _option(path: Path, name: str, annotation: ast.expr | None, default: ast.expr | None) -> Option:
    text = ast.unparse(annotation) if annotation else "Any"
    if default is None:
        return Option(text, required=True)
    return Option(text, _literal(path, name, default))
