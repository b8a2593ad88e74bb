"""Resolved recipes as text, as a hash, and compared."""

import hashlib
import json
from collections.abc import Mapping

import yaml

from attnkit.recipe.build import flatten
from attnkit.recipe.issues import dotted
from attnkit.recipe.schema import Recipe
from attnkit.recipe.values import shown
from attnkit.text import safe_text

LONGEST_PATH = 4096
"""Characters of a text that are compared and told where two recipes differ."""


def dump(recipe: Recipe, header: Mapping[str, str] = {}) -> str:  # noqa: B006
    """A resolved recipe as YAML that `load_resolved` reads back; `header` becomes comments."""
    lines = [f"# {name}: {' '.join(text.split())}" for name, text in header.items()]
    values = recipe.model_dump(mode="json")
    for role, chosen in values["model"]["attention"].items():
        if len(chosen) == 1:  # without options, the word alone
            values["model"]["attention"][role] = chosen["name"]
    body = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)
    return "".join(f"{safe_text(line)}\n" for line in lines) + body


def difference(old: Recipe, new: Recipe) -> list[str]:
    """What differs, a line each: `train.lr: 0.001 -> 0.002`."""
    return [f"{key}: {before} -> {after}" for key, before, after in changed_keys(old, new)]


def changed_keys(old: Recipe, new: Recipe) -> list[tuple[str, str, str]]:
    """What differs: dotted keys with their old and new values."""
    before, after = (
        {dotted(key): shown(value, LONGEST_PATH) for key, value in flatten(recipe)} for recipe in (old, new)
    )
    absent = "(not set)"
    return [
        (key, before.get(key, absent), after.get(key, absent))
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
    model = recipe.model
    return {role: getattr(model.attention, role).name for role in model.places}


def digest(recipe: Recipe) -> str:
    """SHA-256 of a recipe in canonical JSON, in hexadecimal."""
    text = json.dumps(recipe.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
