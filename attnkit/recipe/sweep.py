"""Sweeps: keys with several values on the command line, and the variants of their product."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from attnkit.recipe import mechanism_registry
from attnkit.recipe.issues import COMMAND_LINE, Key, Position, refuse
from attnkit.recipe.reading import as_json, takes_list
from attnkit.recipe.settings import AFTER_TRAINING, SCHEMA, type_of
from attnkit.recipe.values import shown
from attnkit.recipe.yaml_nodes import MAX_BYTES, Node, read_value

MAX_VARIANTS = 1000
"""Maximum number of variants of a sweep."""
MAX_NAME_LENGTH = 64
"""Maximum number of characters of a variant's name; a longer name is cut and ends in a part of its hash."""

_TOKEN = re.compile(r"""\s+|"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[\[\]{},]|[^\s\[\]{},]+""", re.DOTALL)
_SAFE = re.compile(r"[A-Za-z0-9_.+-]+")


class Override(NamedTuple):
    """A key (as its parts), its position and its value."""

    key: Key
    place: Position
    node: Node


class Combination(NamedTuple):
    """A combination of the values of a sweep."""

    name: str
    """Such as lr=0.001,attention=linear; empty if every key has one value."""
    overrides: tuple[Override, ...]


def is_sweep(word: str) -> bool:
    """Return whether a KEY=VALUE word has several values.  Raises RecipeError."""
    key, equals, text = word.partition("=")
    return bool(equals) and len(overrides(tuple(key.strip().split(".")), text.strip())) > 1


def overrides(key: Key, text: str) -> list[Override]:
    """Parse KEY=VALUE: one override, or several for values between commas outside of brackets and quotes.

    A key that takes a list has several values only if one of them is in brackets.  Raises RecipeError.
    """
    items = split_values(text)
    if len(items) == 1 or (_takes_list(key) and not any(i.startswith(("[", "{")) for i in items)):
        return [Override(key, COMMAND_LINE, read_value(text))]
    if "" in items:
        refuse(COMMAND_LINE, "has an empty value; write A,B without spaces", key)
    nodes = {value_text(node): node for node in map(read_value, items)}
    if len(nodes) < len(items):
        refuse(COMMAND_LINE, "names a value twice; name each once", key)
    return [Override(key, COMMAND_LINE, node) for node in nodes.values()]


def split_values(text: str) -> list[str]:
    """Split a text at commas outside of brackets and quotes."""
    items, depth = [""], 0
    for token in _TOKEN.findall(text[:MAX_BYTES]):
        depth += (token in "[{") - (token in "]}")
        if token == "," and depth == 0:
            items.append("")
        else:
            items[-1] += token
    return [item.strip() for item in items]


def combinations(changes: Sequence[Sequence[Override]]) -> list[Combination]:
    """Return the product of the values of each key.

    Raises RecipeError if there are too many, a swept key is set again, or training does not read it.
    """
    swept = [options[0].key for options in changes if len(options) > 1]
    for key in swept:
        if ".".join(key).startswith(AFTER_TRAINING):
            text = "is read after training, so a sweep would train the same model again; train once"
            refuse(COMMAND_LINE, f"{text}, then give one value at a time to `attnkit eval RUN`", key)
    for number, (first, *more) in enumerate(changes):
        later = (change.key for change, *_ in changes[number + 1 :])
        if more and any(first.key[: len(key)] == key for key in later):
            text = "has several values and is set again later; keep one of them"
            refuse(COMMAND_LINE, text, first.key)
    check_number(prod(map(len, changes)))
    labels = [_label(key, swept) for key in swept]
    found = []
    for point in product(*changes):
        nodes = [change.node for change, options in zip(point, changes, strict=True) if options[1:]]
        parts = [f"{label}={value_text(node)}" for label, node in zip(labels, nodes, strict=True)]
        found.append(Combination(",".join(parts), point))
    names = unique([combination.name for combination in found])
    return [combination._replace(name=name) for combination, name in zip(found, names, strict=True)]


def check_number(size: int) -> None:
    """Raise RecipeError if there are more than `MAX_VARIANTS` variants."""
    if size > MAX_VARIANTS:
        refuse(COMMAND_LINE, f"{size:,} variants are too many; the maximum is {MAX_VARIANTS:,}")


def unique(names: Sequence[str]) -> list[str]:
    """Return distinct folder names, with safe characters and limited length."""
    safe = ["".join(_safe(part) for part in re.split("([,=])", name)) for name in names]
    out = []
    for name, text in zip(names, safe, strict=True):
        if len(text) > MAX_NAME_LENGTH or safe.count(text) > 1:
            digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:8]
            text = f"{text[: MAX_NAME_LENGTH - 9]}-{digest}"
        out.append(text)
    return out


def _safe(part: str) -> str:
    return part if part in (",", "=") else "-".join(_SAFE.findall(part))


def _label(key: Key, keys: Iterable[Key]) -> str:
    """Return the shortest suffix of a key that no other key has: lr for train.lr."""
    others = [other for other in keys if other != key]
    sizes = range(1, len(key))
    size = next((n for n in sizes if all(o[-n:] != key[-n:] for o in others)), len(key))
    return ".".join(key[-size:])


def value_text(node: Node) -> str:
    """Return a value in its canonical spelling: 0.001 for 1e-3."""
    return shown(as_json(node), MAX_BYTES)


def _takes_list(key: Key) -> bool:
    """Return whether a key or an option of a mechanism accepts lists."""
    if key in SCHEMA:
        return not isinstance(SCHEMA[key], type) and takes_list(type_of(key))
    words = mechanism_registry.names()
    owners = [word for word in words if key[-1] in mechanism_registry.facts(word).options]
    return any(takes_list(mechanism_registry.option_type(word, key[-1])) for word in owners)
