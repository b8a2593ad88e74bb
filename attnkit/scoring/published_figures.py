"""Published figures beside scores: how they reach a comparison, from a recipe and from its runs."""

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from attnkit.errors import DataError
from attnkit.recipe import RecipeFile
from attnkit.recipe.published import Published
from attnkit.runs import Run

PUBLISHED = "published"
"""Entry of a run's manifest: what the recipe file said when `attnkit train` last read it."""


def published_entry(file: RecipeFile) -> dict[str, Any] | None:
    """The figures of a recipe file as a manifest keeps them; None where it has none."""
    return None if file.published is None else file.published.model_dump(mode="json")


def published_figures(*sources: RecipeFile | Iterable[Run]) -> list[dict[str, Any]]:
    """The figures of recipe files and of runs, each with the name of its recipe, once.

    Raises:
        DataError: the manifest of a run is damaged.
    """
    out: list[dict[str, Any]] = []
    for source in sources:
        if isinstance(source, RecipeFile):
            found = [(source.name, published_entry(source))]
        else:
            found = [(run.name, _entry(run)) for run in source]
        out += [{"recipe": name, **figures} for name, figures in found if figures is not None]
    return [figures for place, figures in enumerate(out) if figures not in out[:place]]


def _entry(run: Run) -> dict[str, Any] | None:
    """What the manifest of a run says, checked."""
    try:
        found = run.manifest.get(PUBLISHED)
        return None if found is None else Published.model_validate(found).model_dump(mode="json")
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise DataError(
            f"{run.path}/manifest.json: {PUBLISHED}.{where} is not what a recipe may say; "
            "run `attnkit train` again, which writes it anew"
        ) from error
