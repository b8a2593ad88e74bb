"""The search section of a recipe with what a caller sets instead."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnkit.errors import UsageError

if TYPE_CHECKING:
    from attnkit.recipe.schema import SearchConfig

SAMPLING = ("top_p", "top_k", "temperature", "seed")  # options that need --sample


def search_settings(recipe: "SearchConfig", options: Mapping[str, Any], sample: bool) -> "SearchConfig":
    """The search section of a recipe, overridden by options of the command line (None: not given).

    Raises UsageError: options exclude each other, do nothing together, or are out of range.
    """
    from attnkit.recipe.reading import typed_value
    from attnkit.recipe.schema import SearchConfig
    from attnkit.recipe.settings import type_of

    given = {name: value for name, value in options.items() if value is not None}
    if sample and "beam" in given:
        raise UsageError("--beam and sampling exclude each other: leave one of them out")
    method = "sample" if sample else "beam" if "beam" in given else recipe.method
    for name in SAMPLING:
        if name in given and method != "sample":
            raise UsageError(f"{_flag(name)} is for sampling: add --sample")
    for name, value in given.items():
        try:
            typed_value(value, type_of(("search", name)), strict=False)
        except UsageError as error:
            raise UsageError(f"{_flag(name)}: {error}") from None
    spec = SearchConfig.model_validate({**dict(recipe), **given, "method": method})
    key, text = spec.misfit
    if key:
        raise UsageError(f"{_flag(key)} {getattr(spec, key)}: {text}")
    # a beam of one is greedy search, which needs no reordering
    single = method == "beam" and spec.beam == 1
    return spec.model_copy(update={"method": "greedy"}) if single else spec


def _flag(name: str) -> str:
    """How a setting is spelled on the command line."""
    return "--" + name.replace("_", "-")
