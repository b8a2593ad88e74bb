"""What a stream can show: a screen, colour."""

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
