"""The mechanisms from outside that a run was trained with, as its manifest keeps them."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnkit.errors import MissingInputError

if TYPE_CHECKING:
    from attnkit.recipe import Recipe

Kept = dict[str, dict[str, str] | None]
KEY = "plugins"
"""Entry of the manifest: word -> {"from": file or package, "sha256": of its file}, or None where
a changed recipe no longer uses it."""


def used(recipe: "Recipe") -> Kept:
    """What the manifest keeps of the mechanisms that attnkit does not bring itself."""
    from attnkit import mechanisms

    known = {*mechanisms.names()}
    found: Kept = {}
    for word in sorted({*_texts(recipe.model.attention.model_dump())} & known):
        facts = mechanisms.facts(word)
        if facts.origin != "attnkit":
            digest = hashlib.sha256(facts.path.read_bytes()).hexdigest()
            found[word] = {"from": facts.origin, "sha256": digest}
    return found


def update(manifest: Mapping[str, Any], recipe: "Recipe") -> Kept:
    """What the manifest must say after its recipe was replaced by this one."""
    return dict.fromkeys(manifest.get(KEY, {})) | used(recipe)


def require(run: Path, manifest: Mapping[str, Any]) -> None:
    """Raise MissingInputError, saying what to add, where a mechanism of a run is unknown."""
    from attnkit import mechanisms

    for word, kept in _entries(manifest):
        if word in mechanisms.names():
            continue
        origin = kept["from"]
        advice = f"add --plugin {origin}" if origin.endswith(".py") else f"install {origin}"
        raise MissingInputError(f"{run}: was trained with the mechanism {word}: {advice}")


def changed(manifest: Mapping[str, Any]) -> list[str]:
    """Files of the mechanisms of a run that are not what they were, as texts of problems."""
    from attnkit import mechanisms

    found = []
    for word, kept in _entries(manifest):
        path = mechanisms.facts(word).path
        if hashlib.sha256(path.read_bytes()).hexdigest() != kept["sha256"]:
            found.append(f"{path} has changed")
    return found


def _entries(manifest: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    return [(word, kept) for word, kept in manifest.get(KEY, {}).items() if kept is not None]


def _texts(value: Any) -> Iterator[str]:
    """All texts inside an attention setting: a composite names others in its options."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
