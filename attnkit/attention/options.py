"""Checks of a mechanism's options, each with the message that users read."""

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


def one_of(word: str, option: str, value: str, *choices: str) -> str:
    """The value of an option of the mechanism `word`.  Raises UsageError unless it is a choice."""
    if value not in choices:
        either = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise UsageError(f"{word}: {option} must be {either}, got {value!r}")
    return value
