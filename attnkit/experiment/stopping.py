"""Signals obeyed where there is nothing to save: while data is prepared or outputs are scored."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from attnkit.distributed import group
from attnkit.errors import StoppedError
from attnkit.train.signals import StopSignals

Result = TypeVar("Result")
PATIENCE = 0.2
"""Seconds between two looks at the signals, while a library computes."""
GRACE = 1.0
"""Seconds that a preparation has to tidy up after a signal."""


def obey(stop: StopSignals, when: str) -> None:
    """Raise StoppedError where a signal has come; other ranks end with the main one."""
    if (name := stop.requested) and group.is_main_process():
        raise StoppedError(f"stopped by {name} {when}")


def interruptible(work: Callable[[], Result], stop: StopSignals, when: str) -> Result:
    """The result of work in a thread: Python handles no signal while a library computes here.

    Raises:
        StoppedError: a signal came.
    """
    result = Future[Result]()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(PATIENCE)
        if stop.requested and group.is_main_process():
            worker.join(GRACE)
            obey(stop, when)
    return result.result()
