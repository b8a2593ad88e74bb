"""Arguments shared by the functions of the Python API: plug-ins, names and texts."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from attnkit import mechanisms
from attnkit.errors import UsageError

Plugins = str | Path | Sequence[str | Path]


def plug_in(plugins: Plugins) -> None:
    """Register the mechanisms and metrics of plug-in files."""
    for file in [plugins] if isinstance(plugins, str | Path) else plugins:
        mechanisms.plug_in(file)


def name_list(names: str | Sequence[str]) -> list[str]:
    """Return names as a list; a string is one name."""
    return [names] if isinstance(names, str) else list(names)


def text_list(texts: str | Sequence[str], name: str = "texts") -> list[str]:
    """Return texts as a list; a string is one text. Raises UsageError if an item is not a string."""
    items = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str) else [texts]
    for item in items:
        if not isinstance(item, str):
            raise UsageError(f"{name} must be text, not {item!r}")
    return items
