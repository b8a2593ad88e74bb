"""Recipes: what to train on what data, and which variants to compare."""

from attnkit.recipe.dumping import difference, digest, dump, flat, places
from attnkit.recipe.find import library, resolve, shipped
from attnkit.recipe.loading import RecipeFile, load, load_resolved, parent_of
from attnkit.recipe.paths import relative_to
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
    "parent_of",
    "places",
    "relative_to",
    "resolve",
    "shipped",
]
