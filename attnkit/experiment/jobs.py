"""Trainings side by side: each run of a recipe in a process of its own, several at a time.

The parent prepares the data, chooses the precision and compares the scores.  A process trains and
scores one run; its events come back over a pipe.  It is forked from one that has imported torch and
run nothing.
"""

import faulthandler
import os
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import current_process, forkserver, get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from attnkit import mechanisms
from attnkit.data.preparation import PreparedData
from attnkit.device import THREADS, sharing, starting_processes, threads_each
from attnkit.errors import (
    AttnkitError,
    MemoryLimitError,
    MissingInputError,
    OutputError,
    StoppedError,
    memory_advice,
    out_of_memory,
    unreachable,
    write_failed,
)
from attnkit.experiment import cost
from attnkit.experiment.experiment import FIRST_LOOK, Experiment, Key, RunTraining
from attnkit.experiment.settings import TrainingSettings
from attnkit.experiment.stopping import PATIENCE
from attnkit.memory import free_memory, release_freed_memory
from attnkit.recipe import Recipe
from attnkit.scoring import Comparison, ScoreRow
from attnkit.storage.files import process_folder
from attnkit.train import events
from attnkit.train.events import Emit, Event, NoteEvent
from attnkit.train.signals import StopSignals

CONTEXT = get_context("forkserver")
PRELOAD = ["attnkit.experiment.jobs", "sacrebleu", "torch.fx.experimental.symbolic_shapes"]
"""What processes find imported; the last is what autograd imports when used."""
PROCESS_BYTES, HEAP_FACTOR = 100 << 20, 2.0
"""Memory of a process beside what it shares with the others: so much, and more than what is live in
its training, because freed blocks are kept; measured on Linux with translation/multi30k."""
LAST_LINES = 20
"""Of what a process wrote before it died."""
AGAIN = "run the same command again to resume"


class Start(NamedTuple):
    """What each process is told when it starts."""

    settings: TrainingSettings
    threads: int
    plugins: tuple[Path, ...]


class TrainingEnd(NamedTuple):
    """What a process sends last."""

    error: AttnkitError | None = None
    details: str = ""
    """The traceback of what should not have happened, or the last words of a process that died."""
    rows: Sequence[ScoreRow] = ()
    """The scores of its run."""


def train_side_by_side(
    settings: TrainingSettings,
    emit: Emit,
    *,
    jobs: int,
    notice: Callable[[str], object] | None = None,
) -> Comparison | None:
    """`attnkit.experiment.training.train` with so many runs at a time, each in a process.

    Every process has an equal share of torch's threads here, at least one.  The results are, bit
    for bit, those of one run after the other with as many threads.  A run that fails is reported
    by a `FailedEvent`; the others are finished and compared, then its error is raised.

    Raises:
        MemoryLimitError: so many do not fit into memory.
        StoppedError: a signal came; the state of every run is saved.
        AttnkitError: of the first run that failed, with a line for each of them.
    """
    planned, threads = settings.runs(), threads_each(jobs)
    with StopSignals(notice) as stop:
        experiment = Experiment(settings, stop, emit)
        emit(NoteEvent(sharing(jobs)))
        states = [(run, run.check().state) for run in experiment.runs()]
        unfinished = {run: run.prepared(emit) for run, state in states if state != "done"}
        check_memory(experiment, unfinished, jobs)
        everything = torch.get_num_threads()
        torch.set_num_threads(threads)  # the precision is chosen as the processes compute
        try:
            for run, state in states:
                if state == "new":
                    experiment.precision_of(run.recipe, unfinished[run], run.path, emit)
        finally:
            torch.set_num_threads(everything)
        release_freed_memory()
        settings = replace(settings, precision=experiment.precision)
        _start_server(threads)
        emit(NoteEvent(f"starting {jobs} processes", passing=True))
        start = Start(settings, threads, tuple(mechanisms.plugged().values()))
        return Jobs(experiment, start, planned, jobs).run()


def check_memory(
    experiment: Experiment, prepared: Mapping[RunTraining, PreparedData], jobs: int
) -> None:
    """Refuse more jobs than fit into the free memory, by the estimates of `cost.memory`.

    Raises:
        MemoryLimitError: the largest ones do not fit together; says how many do.
    """
    device = experiment.device
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
    if free is None:
        return
    sizes: dict[str, int] = {}
    for run, data in prepared.items():
        if run.variant in sizes:
            continue
        sizes[run.variant] = PROCESS_BYTES
        try:
            sizes[run.variant] += int(HEAP_FACTOR * cost.largest_memory(run.recipe, data))
        except Exception as error:  # a mechanism that cannot run without storage may train
            text = f"its memory cannot be estimated ({type(error).__name__}: {error})"
            run.emit(NoteEvent(" ".join(text.split())))
    largest = sorted((sizes[run.variant] for run in prepared), reverse=True)[:jobs]
    if sum(largest) <= free:
        return
    fit = next(number for number in range(len(largest)) if sum(largest[: number + 1]) > free)
    advice = f"use --jobs {fit}" if fit else "use smaller batches (train.batch_tokens) or models"
    raise MemoryLimitError(
        f"--jobs {jobs}: {len(largest)} runs at a time need about {sum(largest) / 2**30:.1f} GiB "
        f"of memory, {free / 2**30:.1f} GiB are free; {advice}"
    )


def _start_server(threads: int) -> None:
    """Start the process that imports torch, with so many threads; the others are forked from it."""
    current_process()._config["tempdir"] = str(process_folder())  # type: ignore[attr-defined]
    CONTEXT.set_forkserver_preload(PRELOAD)
    limited = patch.dict(os.environ, dict.fromkeys(THREADS, str(threads)))
    with limited, starting_processes():
        forkserver.ensure_running()


def serve(connection: Connection, output: Path, start: Start, variant: str, seed: int) -> None:
    """Train and score one run in this process; its events, then a `TrainingEnd`, are sent.

    What libraries and plug-ins print is kept in the file `output`, so that it does not spoil the
    parent's screen.
    """
    with output.open("ab", buffering=0) as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    faulthandler.enable()

    def send(message: Event | TrainingEnd) -> None:
        if not isinstance(message, events.PreparedEvent):  # the parent told it
            with suppress(OSError):  # where it is gone, a stop is asked for
                connection.send(message)

    def warn(message: Any, *_: Any, **__: Any) -> None:
        text = f"warning: {' '.join(str(message).split())}"
        send(NoteEvent(text, variant=variant, seed=seed))

    def stop_without_parent() -> None:
        with suppress(EOFError, OSError):
            connection.recv()
        stop.request("the end of the command")

    with StopSignals() as stop, warnings.catch_warnings():
        warnings.showwarning = warn
        threading.Thread(target=stop_without_parent, daemon=True).start()
        try:
            if torch.get_num_threads() != start.threads:
                torch.set_num_threads(start.threads)
            for path in start.plugins:
                mechanisms.plug_in(path)
            experiment = Experiment(start.settings, stop, send)
            experiment.keep_memory()
            run = RunTraining(experiment, variant, seed)
            end = TrainingEnd(rows=run.evaluate(run.train()))
        except BaseException as error:  # one run must not take the others with it
            end = end_of(error, start.settings.file.variants[variant])
        send(end)


def end_of(error: BaseException, recipe: Recipe) -> TrainingEnd:
    """How a run ended that raised an error."""
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
    whose = mechanisms.plugin_error(error)
    text = whose or f"{type(error).__name__}: {error}; this is a bug in attnkit: please report it"
    details = "".join(traceback.format_exception(error)).rstrip("\n")
    return TrainingEnd(AttnkitError(" ".join(text.split())), details)


def end_of_process(code: int, output: Path) -> TrainingEnd:
    """How a run ended whose process died with an exit code, without a word over the pipe."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    details = "\n".join(lines[-LAST_LINES:])
    again = f"{AGAIN} from its last checkpoint"
    if code >= 0:
        return TrainingEnd(AttnkitError(f"its process ended with code {code}; {again}"), details)
    name = signal.Signals(-code).name
    if name == "SIGKILL":
        text = f"its process was killed (SIGKILL), as the system does when memory runs out; {again}"
        return TrainingEnd(MemoryLimitError(f"{text}, with fewer --jobs if memory was short"))
    if name in ("SIGTERM", "SIGHUP"):  # those that stop; it had not begun to listen
        return TrainingEnd(StoppedError(f"stopped by {name}; {again}"))
    return TrainingEnd(AttnkitError(f"its process died of {name}; {again}"), details)


@dataclass
class Job:
    """One process as the parent sees it."""

    process: Any
    connection: Connection
    output: Path
    key: Key

    @classmethod
    def start(cls, start: Start, output: Path, key: Key) -> "Job":
        """A new process for this run."""
        connection, theirs = CONTEXT.Pipe()
        output.touch()
        process = CONTEXT.Process(target=serve, args=(theirs, output, start, *key), daemon=True)
        with starting_processes():
            process.start()
        theirs.close()
        return cls(process, connection, output, key)

    def receive(self) -> Event | TrainingEnd:
        """The next message; where the process died, how its run ended."""
        try:
            message: Event | TrainingEnd = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return end_of_process(self.process.exitcode, self.output)
        return message

    def close(self) -> None:
        """End it; all that is to be kept is on the disk."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.connection.close()


class Jobs:
    """The processes that train the runs of a recipe."""

    def __init__(
        self, experiment: Experiment, start: Start, planned: Sequence[Key], jobs: int
    ) -> None:
        """`experiment` is that of this process, which compares what the others have scored."""
        self.experiment, self.stop, self.planned, self.jobs = (
            experiment, experiment.stop, planned, jobs
        )  # fmt: skip
        self.start_job = partial(Job.start, start)
        self.waiting, self.active = deque(planned), list[Job]()
        self.rows: dict[Key, Sequence[ScoreRow]] = {}
        self.failures: dict[Key, AttnkitError] = {}
        """In the order in which they came."""
        self.stopped = False
        """Whether a run was stopped before its end."""

    def run(self) -> Comparison | None:
        """Train and score all runs, and compare those that did not fail.

        Raises:
            StoppedError: a signal came; the state of every run is saved.
            AttnkitError: of the first run that failed, with a line for each of them.
        """
        told, comparison = False, None
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=process_folder())))
            stack.callback(self._close)
            while self.active or (self.waiting and not self.stop.requested):
                while self.waiting and len(self.active) < self.jobs and not self.stop.requested:
                    self._begin(folder / f"{len(self.waiting)}.txt")
                if self.stop.requested and not told:
                    told = True
                    for job in self.active:
                        job.process.terminate()
                ready = wait([job.connection for job in self.active], PATIENCE)
                for job in [one for one in self.active if one.connection in ready]:
                    self._follow(job)
        lines = [f"{name} seed {seed}: {error}" for (name, seed), error in self.failures.items()]
        if self.stop.requested and (self.stopped or self.waiting):
            failed = "".join(f"; failed before: {line}" for line in lines)
            raise StoppedError(
                f"stopped by {self.stop.requested}; all that was done is saved{failed}; {AGAIN}"
            )
        if finished := [key for key in self.planned if key in self.rows]:
            comparison = self._compare(finished)
        for error in self.failures.values():
            raise type(error)("\n".join(lines))
        return comparison

    def _begin(self, output: Path) -> None:
        """Start the next run."""
        try:
            self.active.append(self.start_job(output, self.waiting[0]))
        except (EOFError, ConnectionError) as error:
            time.sleep(PATIENCE)  # a signal to all processes comes to this one as well
            if self.stop.requested:
                return
            raise MemoryLimitError(
                "the process that others are started from was killed, as the system does when "
                f"memory runs out; {AGAIN}"
            ) from error
        self.waiting.popleft()

    def _follow(self, job: Job) -> None:
        """Hand on one message of a process, or see to the end of its run."""
        message, emit = job.receive(), self.experiment.emit
        if isinstance(message, Event):
            emit(message)
            return
        self.active.remove(job)
        job.close()
        if message.error is None:
            self.rows[job.key] = message.rows
            if len(self.rows) == FIRST_LOOK < len(self.planned):
                self._compare([*self.rows], len(self.planned) - FIRST_LOOK)
        elif self.stop.requested and isinstance(message.error, StoppedError):
            self.stopped = True
        else:
            self.failures[job.key] = message.error
            at: Any = dict(zip(("variant", "seed"), job.key, strict=True))
            if message.details:
                emit(NoteEvent(message.details, **at))
            emit(events.FailedEvent(str(message.error), message.error.code, **at))

    def _close(self) -> None:
        for job in self.active:
            job.close()

    def _compare(self, keys: Sequence[Key], unfinished: int = 0) -> Comparison | None:
        rows = [row for key in keys for row in self.rows[key]]
        return self.experiment.compare(keys, rows, unfinished)
