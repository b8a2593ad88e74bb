"""Trying option values of attention mechanisms, with torch imported only where there are some."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnkit.recipe import Recipe


def attempt(recipe: "Recipe", role: str, options: Mapping[str, Any]) -> None:
    """See `models.attempt`."""
    from attnkit import models

    models.attempt(recipe, role, options)
