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


def several(names: str | Sequence[str]) -> list[str]:
    """Return names as a list; a string is one name."""
    return [names] if isinstance(names, str) else list(names)


def several_texts(texts: str | Sequence[str], what: str = "texts") -> list[str]:
    """Return texts as a list; a string is one text. Raises UsageError if an item is not a string."""
    found = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str) else [texts]
    for one in found:
        if not isinstance(one, str):
            raise UsageError(f"{what} must be text, not {one!r}")
    return found
