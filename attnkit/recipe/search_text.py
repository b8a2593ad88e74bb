"""What of a search changes outputs, in numbers and in words."""

from attnkit.recipe.after_training import SearchConfig

ALWAYS = ("max_length", "min_length", "no_repeat_ngram")
"""Settings of every method."""
OWN = {"greedy": (), "beam": ("beam", "length_penalty"), "sample": ("temperature", "top_k", "top_p", "seed")}
"""Further settings of each method; the others do nothing there."""


def effective(search: SearchConfig) -> dict[str, str | float]:
    """The settings that outputs depend on."""
    return {name: getattr(search, name) for name in ("method", *OWN[search.method], *ALWAYS)}


def search_text(search: SearchConfig) -> str:
    """A search in words: `beam 5, length penalty 1.0, max_length 100`."""
    settings = effective(search)
    method = str(settings.pop("method"))
    if method == "beam":
        method = f"beam {settings.pop('beam')}, length penalty {settings.pop('length_penalty')}"
    optional = ("min_length", "no_repeat_ngram", "top_k")
    parts = [f"{name} {value}" for name, value in settings.items() if value or name not in optional]
    return ", ".join([method, *parts])
