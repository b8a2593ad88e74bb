"""Recipes: what to train on what data, and which variants to compare."""

from attnkit.recipe.build import relative_to
from attnkit.recipe.dumping import difference, digest, dump, flat, places
from attnkit.recipe.find import library, resolve, shipped
from attnkit.recipe.loading import RecipeFile, chain, load, load_resolved
from attnkit.recipe.schema import Recipe

__all__ = [
    "Recipe",
    "RecipeFile",
    "chain",
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
