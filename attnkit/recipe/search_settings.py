"""Search section of a recipe: overrides by the caller, and the settings that outputs depend on."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnkit.errors import UsageError

if TYPE_CHECKING:
    from attnkit.recipe.schema import SearchConfig

COMMON = ("max_length", "min_length", "no_repeat_ngram")
"""Settings of every method."""
PER_METHOD = {"greedy": (), "beam": ("beam", "length_penalty"), "sample": ("temperature", "top_k", "top_p", "seed")}
"""Further settings of each method, which have no effect with other methods."""
SAMPLING = ("top_p", "top_k", "temperature", "seed")  # options that need --sample


def search_settings(recipe: "SearchConfig", options: Mapping[str, Any], sample: bool) -> "SearchConfig":
    """Return the search section of a recipe, overridden by options of the command line (None: not given).

    Raises UsageError if options exclude each other, have no effect together, or are out of range.
    """
    from attnkit.recipe.reading import typed_value
    from attnkit.recipe.schema import SearchConfig
    from attnkit.recipe.settings import type_of

    given = {name: value for name, value in options.items() if value is not None}
    if sample and "beam" in given:
        raise UsageError("--beam and sampling exclude each other; remove one")
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
    # beam search of width 1 is greedy search, which needs no reordering
    single = method == "beam" and spec.beam == 1
    return spec.model_copy(update={"method": "greedy"}) if single else spec


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def effective(search: "SearchConfig") -> dict[str, str | float]:
    """Return the settings that outputs depend on."""
    return {name: getattr(search, name) for name in ("method", *PER_METHOD[search.method], *COMMON)}


def search_text(search: "SearchConfig") -> str:
    """Describe a search in words: `beam 5, length penalty 1.0, max_length 100`."""
    settings = effective(search)
    method = str(settings.pop("method"))
    if method == "beam":
        method = f"beam {settings.pop('beam')}, length penalty {settings.pop('length_penalty')}"
    optional = ("min_length", "no_repeat_ngram", "top_k")
    parts = [f"{name} {value}" for name, value in settings.items() if value or name not in optional]
    return ", ".join([method, *parts])
