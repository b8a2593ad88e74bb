"""Locations and names of recipes."""

import os
import re
from contextlib import suppress
from pathlib import Path

from attnkit.errors import MissingInputError, RecipeError
from attnkit.text import nearest, quoted

SUFFIX = ".yaml"
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")
NAME_RULE = "use at most 64 ASCII letters, digits, '.', '_', '+' and '-'; start with a letter, a digit or '_'"
"""Characters allowed in a name, for messages; see `is_name`."""
LIST_HINT = "`attnkit recipe list` lists the shipped recipes"
MAX_SUGGESTIONS = 3
"""Maximum number of recipes that a message suggests."""


def library() -> Path:
    """Return the folder of shipped recipes: beside the package in a clone, inside it if installed."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "_recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def shipped() -> dict[str, Path]:
    """Return the shipped recipes by name, `quickstart` first, the others sorted."""
    folder = library()
    found = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob(f"*{SUFFIX}")}
    return {name: found[name] for name in sorted(found, key=lambda n: (n != "quickstart", n))}


def resolve(recipe: str | Path, folder: Path = Path()) -> Path:  # noqa: B008
    """Return the file of a recipe, given its path relative to `folder` or the name of a shipped recipe.

    Raises MissingInputError, which names the recipes in a folder or the nearest shipped ones.
    """
    path = folder / recipe
    with suppress(OSError, ValueError):  # a name that is too long or contains a zero byte
        if path.exists() and not path.is_dir():
            return path
    recipes, name = shipped(), Path(recipe).as_posix()
    if name in recipes:
        return recipes[name]
    bare = name.removeprefix("./").removeprefix("recipes/").removesuffix(SUFFIX)
    files = sorted(path.glob(f"*{SUFFIX}")) if os.path.isdir(path) else []
    suggestions = [str(Path(recipe, file.name)) for file in files]
    suggestions += [full for full in recipes if bare in (full, *full.split("/"))]
    suggestions = suggestions[:MAX_SUGGESTIONS] or [close for close in [nearest(bare, recipes)] if close]
    hint = f"did you mean {' or '.join(suggestions)}?" if suggestions else LIST_HINT
    reason = "it is a folder" if os.path.isdir(path) else "no such file"
    shown = quoted(str(recipe), 200)
    raise MissingInputError(f"no recipe {shown}: {reason}, and no shipped recipe has this name; {hint}")


def is_name(text: str) -> bool:
    """Return whether a text can name a folder of the run directory."""
    return _SAFE.fullmatch(text) is not None


def name_of(path: Path) -> str:
    """Return the name of a recipe file: its path below a folder `recipes`, otherwise its stem.

    The name becomes a folder of the run directory.  Raises RecipeError if it cannot be one.
    """
    absolute = path.absolute()
    folders = absolute.parent.parts
    start = len(folders)
    if absolute.is_relative_to(library()):
        start = len(library().parts)
    elif "recipes" in folders:
        start = len(folders) - folders[::-1].index("recipes")
    parts = [*folders[start:], absolute.stem]
    for part in parts:
        if not is_name(part):
            text = f"recipe {quoted(str(path), 200)}: {quoted(part)} cannot name a run folder"
            raise RecipeError(f"{text}; {NAME_RULE}")
    return "/".join(parts)
