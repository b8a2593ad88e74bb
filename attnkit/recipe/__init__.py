"""Recipes: configurations of experiments, read from YAML and checked before training.

`yaml_nodes` parses text into nodes with positions, `settings` merges files, variants and overrides into one table,
`reading` converts nodes to typed values by pydantic, `build` makes a recipe with the origin of each value; `rules`,
`data_rules` and `capability` check what types cannot express.

Start with `loading.load` (a file and its variants), `schema.Recipe` (every key with type, range, default and meaning)
and `issues.Issues` (errors with their positions).  Imports only `errors` and `text` of the root; mechanisms are read
as text (`mechanism_file`), never imported.
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
