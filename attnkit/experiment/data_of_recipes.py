"""The data of trainings, prepared once for all variants that share it."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from attnkit.data.preparation import PreparedData, check_splits, prepare
from attnkit.data.tokenizer import Tokenizer
from attnkit.distributed import group
from attnkit.errors import StoppedError
from attnkit.recipe import Recipe
from attnkit.train.events import Emit, NoteEvent, PreparedEvent
from attnkit.train.signals import StopSignals

NOTE_EVERY = 2.0
"""Seconds between notes on a long preparation."""
PATIENCE = 0.2
"""Seconds between two looks at the signals, while a library computes."""
GRACE = 1.0
"""Seconds that a preparation has to tidy up after a signal."""
STOPPED = "while preparing the data; run the same command again"


def obey(stop: StopSignals, when: str) -> None:
    """Raise StoppedError where a signal has come; other ranks end with the main one."""
    if (name := stop.requested) and group.is_main_process():
        raise StoppedError(f"stopped by {name} {when}")


class DataOfRecipes:
    """What has been prepared in this process."""

    def __init__(self, places: Mapping[str, Any], stop: StopSignals) -> None:
        """`places` are `data_dir` and `offline` of `prepare`."""
        self.places, self.stop = places, stop
        self.known: dict[str, PreparedData] = {}

    def of(self, recipe: Recipe, tokenizer: Tokenizer | None, emit: Emit) -> PreparedData:
        """The data of a recipe, with the tokenizer of other weights where these are given.

        Raises:
            StoppedError: a signal came.
            AttnkitError: as `prepare` and `check_splits`.
        """
        parts = [part.model_dump_json() for part in (recipe.data, recipe.tokenizer)]
        parts += [tokenizer.digest] if tokenizer else []
        longest = str(max(recipe.eval.lengths, default=0))
        key = "\n".join((*parts, recipe.train.objective, longest, *recipe.eval.splits))
        if key not in self.known:
            reported = time.monotonic()

            def progress(stage: str, done: int, total: int | None) -> None:
                nonlocal reported
                obey(self.stop, STOPPED)
                if time.monotonic() - reported > NOTE_EVERY:
                    reported = time.monotonic()
                    told = f"preparing {stage}: {done:,}" + (f" of {total:,}" if total else "")
                    emit(NoteEvent(told, passing=True))

            def work() -> PreparedData:
                how: Any = {**self.places, "progress": progress}
                check_splits(recipe, **how)
                return prepare(recipe, tokenizer=tokenizer, **how)

            self.known[key] = _interruptible(work, self.stop)
            emit(PreparedEvent(tuple(self.known[key].reports)))
        return self.known[key]


def _interruptible(work: Callable[[], PreparedData], stop: StopSignals) -> PreparedData:
    """The result of work in a thread: Python handles no signal while a library computes here.

    Raises:
        StoppedError: a signal came.
    """
    results, errors = list[PreparedData](), list[BaseException]()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised again below
            errors.append(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(PATIENCE)
        if stop.requested and group.is_main_process():
            worker.join(GRACE)
            obey(stop, STOPPED)
    if errors:
        raise errors[0]
    return results[0]
