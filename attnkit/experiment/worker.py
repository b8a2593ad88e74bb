"""One of several processes that train side by side: it trains and scores one run after another."""

import faulthandler
import os
import queue
import threading
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.errors import (
    AttnkitError,
    MemoryLimitError,
    MissingInputError,
    OutputError,
    memory_advice,
    out_of_memory,
    unreachable,
    write_failed,
)
from attnkit.experiment.settings import TrainingSettings
from attnkit.recipe import Recipe
from attnkit.train import events
from attnkit.train.signals import StopSignals

if TYPE_CHECKING:
    from attnkit.experiment.experiment import Experiment
    from attnkit.scoring import ScoreRow


class StopRequest(NamedTuple):
    """Sent to a worker: save what is in progress, then end."""

    signal: str


class TrainingEnd(NamedTuple):
    """Sent by a worker after the events of one run."""

    error: AttnkitError | None = None
    details: str = ""
    """The traceback of what should not have happened."""
    rows: "Sequence[ScoreRow]" = ()
    """Its scores."""


class WorkerStart(NamedTuple):
    """What a worker is told when it starts; the same for all of them."""

    settings: TrainingSettings
    threads: int
    plugins: tuple[Path, ...]


def serve(connection: Connection, output: Path, start: WorkerStart) -> None:
    """Train and score what `connection` asks for, as (variant, seed), until it is closed.

    Events go back by `connection`, after those of each run a `TrainingEnd`.  What libraries and
    plug-ins print is kept in the file `output`, so that it does not spoil the parent's screen.
    """
    with output.open("ab", buffering=0) as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    faulthandler.enable()
    stop, requests = StopSignals(), queue.SimpleQueue[tuple[str, int] | None]()
    threading.Thread(target=_listen, args=(connection, stop, requests), daemon=True).start()
    with stop:
        worker = Worker(connection, start, stop)
        while (request := requests.get()) is not None and worker.run(*request):
            pass


def _listen(connection: Connection, stop: StopSignals, requests: "queue.SimpleQueue[Any]") -> None:
    """Pass on what the parent sends; a parent that is gone is a request to stop."""
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            stop.request("the end of the command")
            requests.put(None)
            return
        if isinstance(message, StopRequest):
            stop.request(message.signal)
        else:
            requests.put(message)


class Worker:
    """The runs of one process."""

    def __init__(self, connection: Connection, start: WorkerStart, stop: StopSignals) -> None:
        self.connection, self.start, self.stop = connection, start, stop
        self.experiment: Experiment | None = None

    def run(self, variant: str, seed: int) -> bool:
        """Train and score one run; whether this process is fit for another one."""

        def warn(message: Any, *_: Any, **__: Any) -> None:
            text = f"warning: {' '.join(str(message).split())}"
            self._send(events.NoteEvent(text, variant=variant, seed=seed))

        end = TrainingEnd()
        with warnings.catch_warnings():
            warnings.showwarning = warn
            try:
                experiment = self.experiment = self.experiment or self._open()
                rows = experiment.evaluate(experiment.train(variant, seed), variant, seed)
                end = TrainingEnd(rows=rows)
            except BaseException as error:  # one run must not take the others with it
                end = _end(error, self.start.settings.file.variants[variant])
        self._send(end)
        return end.error is None

    def _open(self) -> "Experiment":
        """What is slow to import, with the threads of this process."""
        import torch

        from attnkit import mechanisms
        from attnkit.experiment.experiment import Experiment

        if torch.get_num_threads() != self.start.threads:
            torch.set_num_threads(self.start.threads)
        for path in self.start.plugins:
            mechanisms.plug_in(path)
        experiment = Experiment(self.start.settings, self.stop, self._emit)
        experiment.keep_memory()
        return experiment

    def _emit(self, event: events.Event) -> None:
        if not isinstance(event, events.PreparedEvent):  # the parent told it
            self._send(event)

    def _send(self, message: events.Event | TrainingEnd) -> None:
        """Tell the parent; where it is gone, `_listen` asks for a stop, and the state is saved."""
        with suppress(OSError):
            self.connection.send(message)


def _end(error: BaseException, recipe: Recipe) -> TrainingEnd:
    """How a run ended that was not finished."""
    if isinstance(error, AttnkitError):
        return TrainingEnd(error)
    if out_of_memory(error):
        advice = memory_advice(recipe.train.batch_tokens, recipe.train.accumulate)
        return TrainingEnd(MemoryLimitError(f"out of memory: {advice}"))
    if isinstance(error, OSError) and write_failed(error):
        where = error.filename or "a file"
        return TrainingEnd(OutputError(f"{where}: writing failed: {error.strerror}"))
    if isinstance(error, OSError) and unreachable(error):
        text = f"{error.filename}: cannot be reached: {error.strerror}"
        return TrainingEnd(MissingInputError(text))
    from attnkit import mechanisms

    whose = mechanisms.plugin_error(error)
    text = whose or f"{type(error).__name__}: {error}; this is a bug in attnkit: please report it"
    details = "".join(traceback.format_exception(error)).rstrip("\n")
    return TrainingEnd(AttnkitError(" ".join(text.split())), details)
