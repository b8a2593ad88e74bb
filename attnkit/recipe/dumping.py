"""Resolved recipes as text, as a hash, and compared."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import yaml

from attnkit.recipe.build import USED, flatten
from attnkit.recipe.problems import dotted
from attnkit.recipe.schema import AttentionConfig, Recipe, Section
from attnkit.recipe.values import shown
from attnkit.text import safe_text


def dump(recipe: Recipe, header: Mapping[str, str] = {}) -> str:  # noqa: B006
    """A resolved recipe as YAML that `load_resolved` reads back; `header` becomes comments."""
    lines = [f"# {name}: {' '.join(text.split())}" for name, text in header.items()]
    body = yaml.safe_dump(_plain(recipe), sort_keys=False, allow_unicode=True, width=100)
    return "".join(f"{safe_text(line)}\n" for line in lines) + body


def difference(old: Recipe, new: Recipe) -> list[str]:
    """What differs, a line each: `train.lr: 0.001 -> 0.002`."""
    before, after = flat(old), flat(new)
    absent = "(not set)"
    return [
        f"{key}: {before.get(key, absent)} -> {after.get(key, absent)}"
        for key in before | after
        if before.get(key) != after.get(key)
    ]


def flat(recipe: Recipe) -> dict[str, str]:
    """Every value by its dotted key, as a recipe would write it.

    An attention place is its word, followed by its options one level below.
    """
    return {dotted(key): shown(value) for key, value in flatten(recipe)}


def places(recipe: Recipe) -> dict[str, str]:
    """The attention places that a recipe's model has, and the mechanism of each."""
    attention = recipe.model.attention
    return {role: getattr(attention, role).name for role in USED[recipe.model.shape]}


def digest(recipe: Recipe) -> str:
    """SHA-256 of a recipe in canonical JSON, in hexadecimal."""
    text = json.dumps(recipe.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A recipe as mappings, lists and scalars; an attention place without options is its word."""
    if isinstance(value, AttentionConfig):
        value = value.as_written()
    if isinstance(value, Section):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
