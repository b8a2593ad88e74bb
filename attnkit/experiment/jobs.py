"""Trainings side by side: processes that share out the runs of a recipe.

The parent prepares the data, chooses the precision and compares the scores.  A worker (see
`attnkit.experiment.worker`) is told one run at a time over a pipe, through which its events come
back; it is forked from a process that has imported torch and run nothing.  A worker that fails ends
with its run; another takes its place.
"""

import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import current_process, forkserver, get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from attnkit import mechanisms
from attnkit.data.preparation import PreparedData
from attnkit.device import THREADS, sharing, starting_processes, threads_each
from attnkit.errors import AttnkitError, MemoryLimitError, StoppedError
from attnkit.experiment import cost
from attnkit.experiment.data_of_recipes import PATIENCE
from attnkit.experiment.experiment import FIRST_LOOK, Experiment, Key
from attnkit.experiment.settings import TrainingSettings
from attnkit.experiment.worker import StopRequest, TrainingEnd, WorkerStart, serve
from attnkit.memory import free_memory, release_freed_memory
from attnkit.recipe import Recipe
from attnkit.scoring import Comparison, ScoreRow
from attnkit.storage.files import process_folder
from attnkit.train import events
from attnkit.train.events import Emit, Event, NoteEvent
from attnkit.train.signals import StopSignals

CONTEXT = get_context("forkserver")
PRELOAD = ["attnkit.experiment.experiment", "sacrebleu", "torch.fx.experimental.symbolic_shapes"]
"""What workers find imported; the last is what autograd imports when used."""
PROCESS_BYTES, HEAP_FACTOR = 100 << 20, 2.0
"""Memory of a worker beside what it shares with the others: so much, and more than what is live in
its training, because freed blocks are kept; measured on Linux with translation/multi30k."""
STOPS: dict[int, str] = {signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
"""Signals that stop; a process that has just begun dies of them."""
LAST_LINES = 20
"""Of what a process wrote before it died."""


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
        for key in planned:
            experiment.check(*key)
        emit(NoteEvent(sharing(jobs)))
        unfinished = experiment.prepare(planned)
        check_memory(experiment, unfinished, jobs)
        everything = torch.get_num_threads()
        torch.set_num_threads(threads)  # the precision is chosen as the workers compute
        try:
            experiment.choose_precision(unfinished)
        finally:
            torch.set_num_threads(everything)
        release_freed_memory()
        settings = replace(settings, precision=experiment.precision.chosen)
        start = WorkerStart(settings, threads, tuple(mechanisms.plugged().values()))
        workers = Workers(planned, jobs, start, stop, experiment)
        _start_server(threads)
        emit(NoteEvent(f"starting {jobs} processes", passing=True))
        workers.run()
        finished = [key for key in planned if key in workers.rows]
        found = workers.compare(finished) if finished else None
        if workers.failures:
            raise workers.failure()
        return found


def check_memory(experiment: Experiment, prepared: Mapping[Key, PreparedData], jobs: int) -> None:
    """Refuse more jobs than fit into the free memory, by the estimates of `cost.memory`.

    Raises:
        MemoryLimitError: the largest ones do not fit together; says how many do.
    """
    device = experiment.device
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
    if free is None:
        return
    sizes: dict[str, int] = {}
    for (variant, seed), data in prepared.items():
        if variant in sizes:
            continue
        recipe, sizes[variant] = experiment.recipe(variant, seed), PROCESS_BYTES
        try:
            sizes[variant] += int(HEAP_FACTOR * _live(recipe, data))
        except Exception as error:  # a mechanism that cannot run without storage may train
            text = f"its memory cannot be estimated ({type(error).__name__}: {error})"
            experiment.emit(NoteEvent(" ".join(text.split()), variant=variant, seed=seed))
    largest = sorted((sizes[variant] for variant, _ in prepared), reverse=True)[:jobs]
    if sum(largest) <= free:
        return
    fit = next(number for number in range(len(largest)) if sum(largest[: number + 1]) > free)
    advice = f"use --jobs {fit}" if fit else "use smaller batches (train.batch_tokens) or models"
    raise MemoryLimitError(
        f"--jobs {jobs}: {len(largest)} runs at a time need about {_gib(sum(largest))} of memory, "
        f"{_gib(free)} are free; {advice}"
    )


def _live(recipe: Recipe, data: PreparedData) -> int:
    """Bytes that are live in a training at most."""
    sizes = (len(data.tokenizer.source), len(data.tokenizer.target))
    shapes = cost.largest(recipe, data)
    return max(cost.memory(recipe, sizes, shape).total for shape in shapes)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _start_server(threads: int) -> None:
    """Start the process that imports torch, with so many threads; workers are forked from it."""
    current_process()._config["tempdir"] = str(process_folder())  # type: ignore[attr-defined]
    CONTEXT.set_forkserver_preload(PRELOAD)
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ |= dict.fromkeys(THREADS, str(threads))
    try:
        with starting_processes():
            forkserver.ensure_running()
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


@dataclass
class WorkerProcess:
    """One worker as the parent sees it."""

    process: Any
    connection: Connection
    output: Path
    key: Key
    told: bool = False
    """Whether it was asked to stop."""

    @classmethod
    def start(cls, start: WorkerStart, output: Path, key: Key) -> "WorkerProcess":
        """A new process, and its first run."""
        connection, theirs = CONTEXT.Pipe()
        output.touch()
        process = CONTEXT.Process(target=serve, args=(theirs, output, start), daemon=True)
        with starting_processes():
            process.start()
        theirs.close()
        worker = cls(process, connection, output, key)
        worker.begin(key)
        return worker

    def begin(self, key: Key) -> None:
        """Go on with this run."""
        self.key = key
        self.tell(key)

    def tell(self, message: Key | StopRequest) -> None:
        """Send what it is to do; one that is gone is noticed when its answer is read."""
        with suppress(OSError):
            self.connection.send(message)

    def receive(self) -> Event | TrainingEnd:
        """The next message; where the process died, how its run ended."""
        try:
            message: Event | TrainingEnd = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return self._death(self.process.exitcode)
        return message

    def _death(self, code: int) -> TrainingEnd:
        """The end of a run whose process died."""
        lines = self.output.read_text(encoding="utf-8", errors="replace").splitlines()
        details = "\n".join(lines[-LAST_LINES:])
        again = "run the same command again to resume from its last checkpoint"
        if code == -signal.SIGKILL:
            return TrainingEnd(
                MemoryLimitError(
                    "its process was killed (SIGKILL), as the system does when memory runs out;"
                    f" {again}, with fewer --jobs if memory was short"
                )
            )
        if -code in STOPS:
            return TrainingEnd(StoppedError(f"stopped by {STOPS[-code]}; {again}"))
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return TrainingEnd(AttnkitError(f"its process {how}; {again}"), details)

    def close(self) -> None:
        """End it; all that is to be kept is on the disk."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.connection.close()


@dataclass
class Workers:
    """Processes that work off a list of runs."""

    planned: Sequence[Key]
    jobs: int
    start: WorkerStart
    stop: StopSignals
    experiment: Experiment
    """Of this process, which compares what the workers have scored."""
    rows: dict[Key, Sequence[ScoreRow]] = field(default_factory=dict)
    """The scores of finished runs."""
    failures: dict[Key, AttnkitError] = field(default_factory=dict)
    """In the order in which they came."""
    active: list[WorkerProcess] = field(default_factory=list)
    waiting: deque[Key] = field(default_factory=deque)
    stopped: bool = False
    """Whether a run was stopped before its end."""
    started: int = 0

    def run(self) -> None:
        """Train and score all of them.

        Raises:
            StoppedError: a signal came; the state of every run is saved.
        """
        self.waiting.extend(self.planned)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=process_folder())))
            stack.callback(self._close)
            while self.active or (self.waiting and not self.stop.requested):
                if self.stop.requested:
                    self._ask_to_stop(self.stop.requested)
                while self.waiting and len(self.active) < self.jobs and not self.stop.requested:
                    self.started += 1
                    self._start(folder / f"{self.started}.txt")
                ready = wait([worker.connection for worker in self.active], PATIENCE)
                for worker in [one for one in self.active if one.connection in ready]:
                    self._follow(worker)
        if self.stop.requested and (self.stopped or self.waiting):
            failed = "".join(f"; failed before: {line}" for line in self._lines())
            raise StoppedError(
                f"stopped by {self.stop.requested}; all that was done is saved{failed}; run the"
                " same command again to resume"
            )

    def _start(self, output: Path) -> None:
        """Begin the next run in a new process."""
        try:
            worker = WorkerProcess.start(self.start, output, self.waiting[0])
        except (EOFError, ConnectionError) as error:
            time.sleep(PATIENCE)  # a signal to all processes comes to this one as well
            if self.stop.requested:
                return
            raise MemoryLimitError(
                "the process that others are started from was killed, as the system does when "
                "memory runs out; run the same command again to resume"
            ) from error
        self.waiting.popleft()
        self.active.append(worker)

    def compare(self, keys: Sequence[Key], unfinished: int = 0) -> Comparison | None:
        """The runs of some keys side by side."""
        rows = [row for key in keys for row in self.rows[key]]
        return self.experiment.compare(keys, rows, unfinished)

    def _follow(self, worker: WorkerProcess) -> None:
        """Hand on one message of a worker, and its next run to one that has finished."""
        message, emit = worker.receive(), self.experiment.emit
        if isinstance(message, Event):
            emit(message)
            return
        if message.error is None:
            self.rows[worker.key] = message.rows
            if len(self.rows) == FIRST_LOOK < len(self.planned):
                self.compare([*self.rows], len(self.planned) - FIRST_LOOK)
        if message.error is None and self.waiting and not self.stop.requested:
            worker.begin(self.waiting.popleft())
            return
        self.active.remove(worker)
        key = worker.key
        worker.close()
        if message.error is None:
            return
        if self.stop.requested and isinstance(message.error, StoppedError):
            self.stopped = True
            return
        self.failures[key] = message.error
        variant, seed = key
        if message.details:
            emit(NoteEvent(message.details, variant=variant, seed=seed))
        code = message.error.code
        emit(events.FailedEvent(str(message.error), code, variant=variant, seed=seed))

    def _ask_to_stop(self, name: str) -> None:
        for worker in self.active:
            if not worker.told:
                worker.tell(StopRequest(name))
                worker.told = True

    def _close(self) -> None:
        for worker in self.active:
            worker.close()

    def _lines(self) -> list[str]:
        """A line for each failure."""
        return [f"{name} seed {seed}: {error}" for (name, seed), error in self.failures.items()]

    def failure(self) -> AttnkitError:
        """The error of the run that failed first, with a line for each that failed."""
        first = next(iter(self.failures.values()))
        return type(first)("\n".join(self._lines()))
