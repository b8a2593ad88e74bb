"""Paths in recipes: relative to the file that states them, and from a run to its data."""

import os
from typing import Any

from attnkit.recipe.problems import COMMAND_LINE, Key, Position
from attnkit.recipe.schema import Recipe

PATHS: tuple[Key, ...] = (
    ("data", "train"), ("data", "valid"), ("data", "test"), ("tokenizer", "model"),
    ("eval", "vectors"), ("train", "init"),
)  # fmt: skip
"""Keys whose values are names of files; of `INIT` that may be a folder, or a shipped recipe."""
INIT: Key = ("train", "init")


def found(value: Any, place: Position, folders: bool = False) -> Any:
    """The value of a key of `PATHS` with absolute paths, where the files are.

    A name is relative to the folder of the recipe file where it stands, on the command line to the
    current folder; where there is no such file, to the current folder too, as in earlier versions.
    One that is in neither stays as it is: the data folder may have it.  `folders` are found too.
    """
    if isinstance(value, tuple):
        return tuple(found(name, place, folders) for name in value)
    if not value:
        return value
    name, here = os.path.expanduser(value), os.getcwd()
    beside = here if place == COMMAND_LINE else os.path.realpath(os.path.dirname(place.source))
    for folder in (beside, here):
        path = os.path.normpath(os.path.join(folder, name))
        if os.path.lexists(path) and (folders or not os.path.isdir(path)):
            return path
    return value


def relative_to(recipe: Recipe, folder: str | os.PathLike[str]) -> Recipe:
    """The recipe with absolute paths written relative to a folder.

    `found` reads them back from a recipe file there, also after both have moved together.
    """
    start = os.path.realpath(folder)

    def relative(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(relative, value))
        if not value or not os.path.isabs(value):
            return value
        parent, name = os.path.split(value)
        return os.path.relpath(os.path.join(os.path.realpath(parent), name), start)

    for section, name in PATHS:
        old = getattr(recipe, section)
        new = old.model_copy(update={name: relative(getattr(old, name))})
        recipe = recipe.model_copy(update={section: new})
    return recipe
