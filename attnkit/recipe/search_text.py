"""What of a search changes outputs, in numbers, in words, and as part of a file name."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from attnkit.recipe.schema import SearchConfig

ALWAYS = ("max_length", "min_length", "no_repeat_ngram")
"""Settings of every method."""
OWN = {"greedy": (), "beam": ("beam", "length_penalty"), "sample": ("temperature", "top_k", "top_p", "seed")}
"""Further settings of each method; the others do nothing there."""
DEFAULTS = {name: field.default for name, field in SearchConfig.model_fields.items()}


def effective(search: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that outputs depend on, of a search as `scores.json` keeps it."""
    method = str(search.get("method", DEFAULTS["method"]))
    names = ("method", *OWN.get(method, ()), *ALWAYS)
    return {name: search.get(name, DEFAULTS[name]) for name in names}


def search_text(search: Mapping[str, Any]) -> str:
    """A search in words: `beam 5, length penalty 1.0, max_length 100`."""
    settings = effective(search)
    method = str(settings.pop("method"))
    if method == "beam":
        method = f"beam {settings.pop('beam')}, length penalty {settings.pop('length_penalty')}"
    optional = ("min_length", "no_repeat_ngram", "top_k")
    parts = [f"{name} {value}" for name, value in settings.items() if value or name not in optional]
    return ", ".join([method, *parts])


def search_key(search: Mapping[str, Any]) -> str:
    """A text that is the same for searches that give the same outputs, contexts included."""
    settings = effective(search) | {"contexts": search.get("contexts")}
    return json.dumps(settings, sort_keys=True, separators=(",", ":"))


def search_name(search: Mapping[str, Any]) -> str:
    """A search as part of a file name, one for each: `beam-5-1a2b3c4d`."""
    text, settings = search_key(search), effective(search)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    beam = f"-{settings['beam']}" if settings["method"] == "beam" else ""
    return f"{settings['method']}{beam}-{digest}"
