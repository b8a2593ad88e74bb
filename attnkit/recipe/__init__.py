"""Recipes: what to train on what data, and which variants to compare."""

from attnkit.recipe.dump import difference, digest, dump, flat, places
from attnkit.recipe.library import library, resolve, shipped
from attnkit.recipe.load import RecipeFile, load, load_resolved, parent_of
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
    "resolve",
    "shipped",
]
