"""Recipes: what to train on what data, and which variants to compare.

From text to types: `yaml_nodes` reads text with positions, `settings` puts files, variants and
overrides into one table, `reading` makes typed values of it by pydantic, `build` a recipe with the
origin of every value; `rules`, `data_rules` and `capability` say what types cannot.

Start with `loading.load` (a file and its variants), `schema.Recipe` (every key with type, range, default and meaning)
and `issues.Issues` (what is wrong, and where).  Imports `errors` and `text` of the root only; mechanisms are known by
their files' text (`mechanism_file`), never imported.
"""

from attnkit.recipe.build import relative_to
from attnkit.recipe.dumping import difference, digest, dump, flat, places
from attnkit.recipe.find import library, resolve, shipped
from attnkit.recipe.loading import RecipeFile, load, load_resolved
from attnkit.recipe.schema import Recipe

__all__ = [
    "Recipe",
    "RecipeFile",
    "difference",
    "digest",
    "dump",
    "flat",
    "library",
    "load",
    "load_resolved",
    "places",
    "relative_to",
    "resolve",
    "shipped",
]
