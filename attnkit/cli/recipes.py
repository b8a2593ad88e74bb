"""Recipes as commands take them: their arguments, the choice of variants, the check of options."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from attnkit.cli import completion
from attnkit.cli.options import suggestion, value
from attnkit.errors import UsageError
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.recipe import Recipe, RecipeFile

RecipeName = Annotated[
    str,
    Argument(
        metavar="RECIPE",
        help="Recipe file, or the name of a shipped recipe (see `attnkit recipe list`).",
        autocompletion=completion.recipes,
    ),
]
Overrides = Annotated[
    list[str] | None,
    Argument(
        metavar="KEY=VALUE",
        help="Override recipe keys, as in train.steps=200.",
        autocompletion=completion.keys,
    ),
]
Variants = Annotated[
    list[str] | None,
    value("NAME", "Only this variant. Repeatable.", autocompletion=completion.variants),
]


def chosen(file: "RecipeFile", names: Sequence[str] | None) -> list[str]:
    """The named variants in the order of the recipe; all of them where none is named.

    Raises:
        UsageError: the recipe has no such variant.
    """
    for name in names or ():
        if name not in file.variants:
            hint = suggestion(name, [*file.variants])
            raise UsageError(f"{file.name} has no variant {quoted(name)}; {hint}")
    return [name for name in file.variants if not names or name in names]


def check_options(recipe: "Recipe", role: str, options: Mapping[str, Any]) -> None:
    """`models.check_options`, which imports torch, for recipes that set options of mechanisms."""
    from attnkit import models

    models.check_options(recipe, role, options)
