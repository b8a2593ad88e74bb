"""Resolved recipes as YAML, as hashes, and their differences."""

import hashlib
import json
from collections.abc import Mapping

import yaml

from attnkit.recipe.build import flatten
from attnkit.recipe.issues import dotted
from attnkit.recipe.schema import Recipe
from attnkit.recipe.values import shown
from attnkit.text import safe_text

MAX_VALUE_LENGTH = 4096
"""Maximum number of characters of a value that are compared and shown."""


def dump(recipe: Recipe, header: Mapping[str, str] = {}) -> str:  # noqa: B006
    """Return a resolved recipe as YAML for `load_resolved`; `header` becomes comments."""
    lines = [f"# {name}: {' '.join(text.split())}" for name, text in header.items()]
    values = recipe.model_dump(mode="json")
    for role, attention in values["model"]["attention"].items():
        if len(attention) == 1:  # without options: only the name
            values["model"]["attention"][role] = attention["name"]
    body = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)
    return "".join(f"{safe_text(line)}\n" for line in lines) + body


def difference(old: Recipe, new: Recipe) -> list[str]:
    """Return the differences, one per line: `train.lr: 0.001 -> 0.002`."""
    return [f"{key}: {before} -> {after}" for key, before, after in changed_keys(old, new)]


def changed_keys(old: Recipe, new: Recipe) -> list[tuple[str, str, str]]:
    """Return the dotted keys that differ, with their old and new values."""
    before, after = (
        {dotted(key): shown(value, MAX_VALUE_LENGTH) for key, value in flatten(recipe)} for recipe in (old, new)
    )
    absent = "(not set)"
    return [
        (key, before.get(key, absent), after.get(key, absent))
        for key in before | after
        if before.get(key) != after.get(key)
    ]


def flat(recipe: Recipe) -> dict[str, str]:
    """Return values by dotted key, formatted as in a recipe; options of an attention role are one level below it."""
    return {dotted(key): shown(value) for key, value in flatten(recipe)}


def places(recipe: Recipe) -> dict[str, str]:
    """Return the mechanism of each attention role of the model."""
    model = recipe.model
    return {role: getattr(model.attention, role).name for role in model.places}


def digest(recipe: Recipe) -> str:
    """Return the SHA-256 of a recipe in canonical JSON, in hexadecimal."""
    text = json.dumps(recipe.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
