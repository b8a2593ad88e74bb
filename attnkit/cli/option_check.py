"""Trying option values of attention mechanisms, with torch imported only where there are some."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnkit.recipe import Recipe


def attempt(recipe: "Recipe", role: str, options: Mapping[str, Any]) -> None:
    """See `models.check_options`."""
    from attnkit import models

    models.check_options(recipe, role, options)
