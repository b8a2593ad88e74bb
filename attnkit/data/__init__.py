"""Corpora: cards, readers, encoded ids, batch plans, generated corpora."""

import os
from pathlib import Path

from attnkit.errors import OutputPathError


def cache_dir() -> Path:
    """The folder for downloads and encoded corpora, which may not exist yet.

    $ATTNKIT_CACHE, else $XDG_CACHE_HOME/attnkit, else ~/.cache/attnkit.

    Raises:
        OutputPathError: none of them is set and there is no home folder.
    """
    if chosen := os.environ.get("ATTNKIT_CACHE"):
        return Path(chosen)
    if (base := os.environ.get("XDG_CACHE_HOME")) and Path(base).is_absolute():
        return Path(base, "attnkit")
    try:
        return Path.home() / ".cache" / "attnkit"
    except RuntimeError as error:
        raise OutputPathError("no home folder for the cache: set ATTNKIT_CACHE") from error
