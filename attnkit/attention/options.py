"""Checks of numbers among a mechanism's options, beyond what their types say already."""

import math

from attnkit.errors import UsageError


def at_least(word: str, option: str, value: int, least: int = 1) -> int:
    """The value of an option of the mechanism `word`.  Raises UsageError where it is too small."""
    if value < least:
        raise UsageError(f"{word}: {option} must be at least {least}, got {value}")
    return value


def above(word: str, option: str, value: float, bound: float = 0.0) -> float:
    """The value of an option of the mechanism `word`.  Raises UsageError unless it is above."""
    if not bound < value < math.inf:
        raise UsageError(f"{word}: {option} must be above {bound:g}, got {value}")
    return value
