"""How far a conversion is: the updates of attention transfer and fine-tuning as events."""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from attnkit.train.events import Emit, ProgressEvent

EVERY = 1.0
"""Seconds between two events."""


class Update(NamedTuple):
    """One update of weights."""

    loss: float
    """Before the update."""
    lr: float
    tokens: int
    """Of its batch."""


def make_updates(
    made: Iterable[Update],
    updates: int,
    loss_name: str,
    check: Callable[[int, float], object],
    emit: Emit,
) -> list[float]:
    """Make updates and tell how far they are; their losses.

    Args:
        made: makes an update for each item that is taken.
        updates: how many items it has.
        loss_name: what the loss is.
        check: called with the number of each update and its loss; raises where it cannot go on.
        emit: called with `ProgressEvent`s.
    """
    losses, tokens, begin, told = list[float](), 0, time.perf_counter(), 0.0
    for done, update in enumerate(made, 1):
        losses.append(update.loss)
        tokens += update.tokens
        check(done, update.loss)
        seconds = time.perf_counter() - begin
        if seconds - told > EVERY or done == updates:
            told, left = seconds, seconds / done * (updates - done)
            speed = tokens / seconds
            emit(ProgressEvent(done, updates, *update[:2], speed, None, left, loss_name))
    return losses
