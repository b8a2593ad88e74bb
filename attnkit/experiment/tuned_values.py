"""Values that trials chose for the rows of a recipe, as the manifests of their runs keep them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from attnkit.recipe import RecipeFile
from attnkit.recipe.dumping import flat
from attnkit.runs import Run, run_path
from attnkit.runs.json_files import Tuned

ABSENT = "(not set)"
"""In place of a value that a recipe lacks."""


def recorded(file: RecipeFile, names: Sequence[str], words: Sequence[str], out: Path) -> dict[str, Tuned]:
    """The entries of rows that were tuned before, so that their runs go on with what was chosen.

    A row is left out whose recipe has changed in what was tuned, or where a word sets it.
    """
    found = dict[str, Tuned]()
    given = {word.partition("=")[0].strip() for word in words}
    for name in names:
        for path in sorted(run_path(out, file.name, name, 0).parent.glob("seed-*/manifest.json")):
            if (entry := Run.open(path.parent).manifest.tuned) is None:
                continue
            own = flat(file.variants[name])
            same = all(own.get(key, ABSENT) == value for key, value in entry.was.items())
            if same and not given & {entry.key, f"variants.{name}.{entry.key}"}:
                found[name] = entry
            break
    return found


def recorded_words(found: Mapping[str, Tuned]) -> list[str]:
    """The KEY=VALUE words that set recorded values again."""
    return [f"variants.{row}.{entry.key}={entry.value}" for row, entry in found.items()]
