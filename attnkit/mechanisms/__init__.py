"""The attention mechanisms: one file = one mechanism = one recipe word.

This module reads the files without importing them, so what a mechanism can do is known without
torch.  A word is the file's name with hyphens.
"""

import ast
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnkit.errors import UsageError
from attnkit.text import nearest

if TYPE_CHECKING:
    from attnkit.attention import Attention

_FOLDER = Path(__file__).parent
_CONTRACT = _FOLDER.parent / "attention.py"
_MODIFIERS = _FOLDER.parent / "modifiers.py"


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
    uses: str = "qkv"
    causal: bool = True
    cross: bool = True
    limit: int | str | None = None
    positions: tuple[str, ...] = ()
    map: str = "exact"
    cost: str = ""
    why: str = ""
    options: Mapping[str, Option] = field(default_factory=dict)


def names() -> list[str]:
    """All recipe words, sorted."""
    return sorted(
        path.stem.replace("_", "-") for path in _FOLDER.glob("*.py") if path.stem != "__init__"
    )


@cache
def facts(word: str) -> Facts:
    """What a mechanism can do, read from its file without importing it.

    Raises UsageError for an unknown word, naming the nearest.
    """
    if word not in names():
        close = nearest(word, names())
        hint = f"did you mean {close!r}?" if close else f"known: {', '.join(names())}"
        raise UsageError(f"attention mechanism {word!r} is not known; {hint}")
    path = _FOLDER / f"{word.replace('-', '_')}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = _classes(tree)
    chain = _chain(classes, _mechanism_class(tree))
    literals: dict[str, Any] = {}
    for node in reversed(chain):
        literals |= _literals(node)
    known = {name: literals[name] for name in Facts.__dataclass_fields__ if name in literals}
    options = _keywords(chain[0])
    if any(node.name == "Scored" for node in chain):
        options |= _fields(_classes(_read(_MODIFIERS))["Modifiers"])
    doc = ast.get_docstring(tree) or ""
    return Facts(word=word, path=path, doc=doc, options=options, **known)


def load(word: str) -> "type[Attention]":
    """Import the class of a mechanism.  Raises UsageError for an unknown word."""
    path = facts(word).path
    module = importlib.import_module(f"attnkit.mechanisms.{path.stem}")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: type[Attention] = getattr(module, _mechanism_class(tree).name)
    return found


@cache
def _read(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _mechanism_class(tree: ast.Module) -> ast.ClassDef:
    """The last class of a file is its mechanism."""
    return list(_classes(tree).values())[-1]


def _chain(classes: dict[str, ast.ClassDef], node: ast.ClassDef) -> list[ast.ClassDef]:
    """A class and its ancestors, nearest first, as far as attention.py or the file defines them."""
    chain = [node]
    known = _classes(_read(_CONTRACT)) | classes
    while bases := [b.id for b in chain[-1].bases if isinstance(b, ast.Name) and b.id in known]:
        chain.append(known[bases[0]])
    return chain


def _literals(node: ast.ClassDef) -> dict[str, Any]:
    found = {}
    for item in node.body:
        if not isinstance(item, ast.Assign | ast.AnnAssign) or item.value is None:
            continue
        target = item.targets[0] if isinstance(item, ast.Assign) else item.target
        if isinstance(target, ast.Name):
            found[target.id] = ast.literal_eval(item.value)
    return found


def _keywords(node: ast.ClassDef) -> dict[str, Option]:
    """The keyword-only arguments of a class's constructor."""
    found = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            for argument, default in zip(item.args.kwonlyargs, item.args.kw_defaults, strict=True):
                found[argument.arg] = _option(argument.annotation, default)
    return found


def _fields(node: ast.ClassDef) -> dict[str, Option]:
    return {
        item.target.id: _option(item.annotation, item.value)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def _option(annotation: ast.expr | None, default: ast.expr | None) -> Option:
    text = ast.unparse(annotation) if annotation else "Any"
    if default is None:
        return Option(text, required=True)
    return Option(text, ast.literal_eval(default))
