"""What a stream can show: a screen, colour, glyphs beyond ASCII."""

import os
from typing import TextIO

_allowed = True


def allow_colour(allowed: bool) -> None:
    """Whether colour may be used at all: False after --no-color."""
    global _allowed
    _allowed = allowed


def terminal(stream: TextIO) -> bool:
    """Whether a person watches this stream on a screen that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def coloured(stream: TextIO) -> bool:
    """Whether colour is wanted: a terminal, no NO_COLOR, no --no-color."""
    return _allowed and not os.environ.get("NO_COLOR") and terminal(stream)


def ascii_only(stream: TextIO) -> bool:
    """Whether boxes and bars must be ASCII: an explicit C locale, or an encoding without them.

    Python reads and writes UTF-8 under LC_ALL=C, so its encoding alone does not tell.
    """
    names = (os.environ.get(key) for key in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next((name for name in names if name), "")
    return locale in ("C", "POSIX") or not (stream.encoding or "").lower().startswith("utf")
