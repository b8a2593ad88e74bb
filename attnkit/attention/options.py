"""Range checks for options of mechanisms, in addition to the checks of their types."""

import math

from attnkit.errors import UsageError


def at_least(word: str, option: str, value: int, least: int = 1) -> int:
    """Return an option of the mechanism `word`. Raises UsageError if it is below `least`."""
    if value < least:
        raise UsageError(f"{word}: {option} must be at least {least}, got {value}")
    return value


def above(word: str, option: str, value: float, bound: float = 0.0) -> float:
    """Return an option of the mechanism `word`. Raises UsageError unless it is finite and above `bound`."""
    if not bound < value < math.inf:
        raise UsageError(f"{word}: {option} must be above {bound:g}, got {value}")
    return value
