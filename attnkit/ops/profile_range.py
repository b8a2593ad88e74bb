"""Ranges in profiles that cost nothing without a profiler, for what every step of a search does."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from torch._C._autograd import _profiler_enabled
from torch.profiler import record_function

P = ParamSpec("P")
R = TypeVar("R")


def profiled(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As `record_function(name)`, a decorator, where a profiler runs."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        ranged: Callable[P, R] = record_function(name)(function)

        @wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            return ranged(*args, **named) if _profiler_enabled() else function(*args, **named)

        return call

    return decorate
