"""Mechanisms from outside attnkit that a run was trained with, as recorded in its manifest."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnkit.errors import MissingInputError
from attnkit.runs.json_files import PluginFile

if TYPE_CHECKING:
    from attnkit.recipe import Recipe

Plugins = Mapping[str, PluginFile | None]
"""Manifest entry of the mechanisms."""


def entries(recipe: "Recipe", previous: Plugins) -> dict[str, dict[str, str] | None]:
    """Return the manifest entry for a recipe, given the previous entry."""
    from attnkit import mechanisms

    recorded: dict[str, dict[str, str] | None] = dict.fromkeys(previous)
    for name in sorted({*_strings(recipe.model.attention.model_dump())} & {*mechanisms.names()}):
        facts = mechanisms.facts(name)
        if facts.origin != "attnkit":
            recorded[name] = {"from": facts.origin, "sha256": _digest(facts.path)}
    return recorded


def require(run: Path, recorded: Plugins) -> None:
    """Raise MissingInputError, which says what to add to the command, if a mechanism of the run is unknown."""
    from attnkit import mechanisms

    for name, entry in recorded.items():
        if entry and name not in mechanisms.names():
            origin = entry.origin
            advice = f"add --plugin {origin}" if origin.endswith(".py") else f"install {origin}"
            raise MissingInputError(f"{run}: was trained with the mechanism {name}: {advice}")


def changes(recorded: Plugins) -> list[tuple[str, str, str]]:
    """Return the files of mechanisms that have changed, each with the first digits of its old and new SHA-256."""
    from attnkit import mechanisms

    paths = [(mechanisms.facts(name).path, entry.sha256) for name, entry in recorded.items() if entry]
    found = [(str(path), old[:8], _digest(path)[:8]) for path, old in paths]
    return [change for change in found if change[1] != change[2]]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in an attention setting: composites name other mechanisms in their options."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)
