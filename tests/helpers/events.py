"""The events of a training or a conversion, which tell them to `emit`."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from attnkit.train.events import Event


class StopTraining(BaseException):
    """Raised by a test that has seen enough; nothing else takes it for an error."""


def record_events(
    function: Callable[..., object], *arguments: Any, watch: Callable[[Event], object] = lambda _: None, **options: Any
) -> list[Event]:
    """All events of function(*arguments, emit=...); `watch` is called with each, too."""
    told: list[Event] = []

    def emit(event: Event) -> None:
        told.append(event)
        watch(event)

    with suppress(StopTraining):
        function(*arguments, emit=emit, **options)
    return told


def stop_at(wanted: Callable[[Event], object]) -> Callable[[Event], None]:
    """What ends a training at the first event that is wanted, as a kill would."""

    def watch(event: Event) -> None:
        if wanted(event):
            raise StopTraining

    return watch
