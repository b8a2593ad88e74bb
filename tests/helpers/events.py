"""Events of a training or a conversion, which receives a function `emit`."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from attnkit.train.events import Event


class StopTraining(BaseException):
    """Raised by a test to end a training; no code of attnkit catches it."""


def record_events(
    function: Callable[..., object], *arguments: Any, watch: Callable[[Event], object] = lambda _: None, **options: Any
) -> list[Event]:
    """Return all events of function(*arguments, emit=...); call `watch` with each."""
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        watch(event)

    with suppress(StopTraining):
        function(*arguments, emit=emit, **options)
    return events


def stop_at(condition: Callable[[Event], object]) -> Callable[[Event], None]:
    """Return a `watch` that ends a training at the first event with this condition, as a kill would."""

    def watch(event: Event) -> None:
        if condition(event):
            raise StopTraining

    return watch
