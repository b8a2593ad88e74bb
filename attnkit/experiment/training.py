"""Training and scoring of all variants and seeds of a recipe, in sequence or in parallel, and their comparison.

In parallel, each run has its own process. The parent prepares the data, chooses the precision and compares the scores.
A process trains and scores one run and sends its events over a pipe. It is forked from a process that has imported
torch but run nothing.
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
from dataclasses import replace
from multiprocessing import current_process, forkserver, get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from attnkit import mechanisms
from attnkit.data.corpus_files import known_digests
from attnkit.device import THREADS, sharing, starting_processes, threads_each
from attnkit.distributed import group
from attnkit.errors import AttnkitError, MemoryLimitError, StoppedError, known_error
from attnkit.experiment.experiment import POLL, Experiment, Key, RunTraining
from attnkit.experiment.settings import TrainingSettings
from attnkit.memory import release_freed_memory
from attnkit.recipe import Recipe
from attnkit.scoring import Comparison, ScoreRow
from attnkit.storage.files import process_folder
from attnkit.train import events
from attnkit.train.events import Emit, Event, NoteEvent, ignore
from attnkit.train.signals import StopSignals

CONTEXT = get_context("forkserver")
PRELOAD = ["attnkit.experiment.training", "sacrebleu", "torch.fx.experimental.symbolic_shapes"]
"""Modules imported before the fork; the last one is imported by autograd on first use."""
LAST_LINES = 20
"""Number of last lines of output to show from a process that died."""
AGAIN = "run the same command again to resume"


class Start(NamedTuple):
    """Arguments of each process."""

    settings: TrainingSettings
    threads: int
    plugins: tuple[Path, ...]
    digests: Mapping[Any, str] = {}
    """Hashes of the files that the parent has read."""


class TrainingEnd(NamedTuple):
    """Last message of a process."""

    error: AttnkitError | None = None
    details: str = ""
    """Traceback of an unexpected error, or the last output of a process that died."""
    rows: Sequence[ScoreRow] = ()


def train(
    settings: TrainingSettings, emit: Emit = ignore, *, jobs: int = 1, notice: Callable[[str], object] | None = None
) -> Comparison | None:
    """Train unfinished runs, skip finished ones, and score and compare all; `attnkit train` calls this function.

        file = load("quickstart", ["train.steps=200"])  # a recipe and KEY=VALUE overrides
        train(TrainingSettings(file=file, out=Path("runs"), variants=["linear"], seeds=[1]), print)

    Args:
        settings: Runs to train.
        emit: Receives each event (`train.events`).
        jobs: Number of parallel runs, each in its own process if there are several.
        notice: Receives the name of the first signal; see `StopSignals`.

    Returns:
        The comparison; None for trials, which are not scored, and on other ranks than 0.

    Raises:
        RecipeError: If a run was trained with another recipe.
        StoppedError: If a signal arrives; the state is saved.
        UnavailableError: If the device, or a package for a metric, is missing.
        AttnkitError: If the data, the run directory or the training fails.
    """
    if jobs > 1:
        return train_side_by_side(settings, emit, jobs=jobs, notice=notice)
    with StopSignals(notice) as stop:
        experiment = Experiment(settings, stop, emit)
        experiment.keep_memory()
        planned, rows = experiment.runs(), list[ScoreRow]()
        for run in planned if group.is_main_process() else ():
            run.check()
        for run in planned:
            rows += run.evaluate(run.train())
        return experiment.compare([run.key for run in planned], rows)


def prepare_data(
    settings: TrainingSettings, emit: Emit = ignore, *, notice: Callable[[str], object] | None = None
) -> None:
    """Prepare and cache the data of all trainings for `train`.

    Raises StoppedError if a signal arrives (finished shards are kept), or AttnkitError if the data or the initial
    weights are missing or invalid.
    """
    with StopSignals(notice) as stop:
        for run in Experiment(settings, stop, emit).runs():
            run.prepared(emit)


def train_side_by_side(
    settings: TrainingSettings, emit: Emit, *, jobs: int, notice: Callable[[str], object] | None = None
) -> Comparison | None:
    """`train` with `jobs` runs in parallel, each in its own process.

    Every process gets an equal share of torch's threads, at least one. The results are bit-identical to sequential
    runs with as many threads. A run that fails is reported by a `FailedEvent`; the other runs are finished and
    compared, then its error is raised.

    Raises:
        StoppedError: If a signal arrives; the state of every run is saved.
        AttnkitError: If runs fail: the type of the first error, with a line for each failed run.
    """
    planned, threads = settings.runs(), threads_each(jobs)
    with StopSignals(notice) as stop:
        experiment = Experiment(settings, stop, emit)
        emit(NoteEvent(sharing(jobs)))
        states = [(run, run.check().state) for run in experiment.runs()]
        unfinished = {run: run.prepared(emit) for run, state in states if state != "done"}
        all_threads = torch.get_num_threads()
        torch.set_num_threads(threads)  # the precision is chosen with the threads of a process
        try:
            for run, state in states:
                if state == "new":
                    experiment.precision_of(run.recipe, unfinished[run], run.path, emit)
        finally:
            torch.set_num_threads(all_threads)
        release_freed_memory()
        settings = replace(settings, precision=experiment.precision)
        # start the process that imports torch, from which the others are forked
        current_process()._config["tempdir"] = str(process_folder())  # type: ignore[attr-defined]
        CONTEXT.set_forkserver_preload(PRELOAD)
        with patch.dict(os.environ, dict.fromkeys(THREADS, str(threads))), starting_processes():
            forkserver.ensure_running()
        emit(NoteEvent(f"starting {jobs} processes", passing=True))
        start = Start(settings, threads, tuple(mechanisms.plugged().values()), known_digests)
        return run_jobs(experiment, start, planned, jobs)


def serve(connection: Connection, output: Path, start: Start, variant: str, seed: int) -> None:
    """Train and score one run in this process; send its events, then a `TrainingEnd`.

    Output of libraries and plug-ins is redirected to the file `output`, away from the parent's screen.
    """
    with output.open("ab", buffering=0) as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    faulthandler.enable()

    def send(message: Event | TrainingEnd) -> None:
        if not isinstance(message, events.PreparedEvent):  # the parent has already emitted it
            with suppress(OSError):  # if the parent is gone, `stop_without_parent` requests a stop
                connection.send(message)

    def warn(message: Any, *_: Any, **__: Any) -> None:
        send(NoteEvent(f"warning: {' '.join(str(message).split())}", variant=variant, seed=seed))

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
            known_digests.update(start.digests)
            experiment = Experiment(start.settings, stop, send, checked=True)
            experiment.keep_memory()
            run = RunTraining(experiment, variant, seed)
            end = TrainingEnd(rows=run.evaluate(run.train()))
        except BaseException as error:  # a failed run must not end the others
            end = end_of(error, start.settings.file.variants[variant])
        send(end)


def end_of(error: BaseException, recipe: Recipe) -> TrainingEnd:
    """Return the end of a run that raised an error."""
    if known := known_error(error, recipe.train.batch_tokens, recipe.train.accumulate):
        return TrainingEnd(known)
    bug = f"{type(error).__name__}: {error}; this is a bug in attnkit: please report it"
    text = mechanisms.plugin_error(error) or bug
    details = "".join(traceback.format_exception(error)).rstrip("\n")
    return TrainingEnd(AttnkitError(" ".join(text.split())), details)


def end_of_process(code: int, output: Path) -> TrainingEnd:
    """Return the end of a run whose process died without sending a `TrainingEnd`."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    details = "\n".join(lines[-LAST_LINES:])
    again = f"{AGAIN} from its last checkpoint"
    if code >= 0:
        return TrainingEnd(AttnkitError(f"its process ended with code {code}; {again}"), details)
    name = signal.Signals(-code).name
    if name == "SIGKILL":
        text = f"its process was killed (SIGKILL), probably because memory ran out; {again}"
        return TrainingEnd(MemoryLimitError(f"{text}, with fewer --jobs if memory ran out"))
    if name in ("SIGTERM", "SIGHUP"):  # a stop before the process had installed its handlers
        return TrainingEnd(StoppedError(f"stopped by {name}; {again}"))
    return TrainingEnd(AttnkitError(f"its process was killed by {name}; {again}"), details)


class Job:
    """Process of one run, as seen by the parent."""

    def __init__(self, start: Start, output: Path, key: Key) -> None:
        self.key, self.output = key, output
        self.connection, child_connection = CONTEXT.Pipe()
        output.touch()
        self.process: Any = CONTEXT.Process(target=serve, args=(child_connection, output, start, *key), daemon=True)
        with starting_processes():
            self.process.start()
        child_connection.close()

    def receive(self) -> Event | TrainingEnd:
        """Return the next message, or the end of the run if the process died."""
        try:
            message: Event | TrainingEnd = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return end_of_process(self.process.exitcode, self.output)
        return message

    def close(self) -> None:
        """Kill the process; everything to be kept is on disk."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.connection.close()


def close(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.close()


def run_jobs(experiment: Experiment, start: Start, planned: Sequence[Key], jobs: int) -> Comparison | None:
    """Train and score all runs in processes, and compare those that did not fail; raises as `train_side_by_side`."""
    stop, emit = experiment.stop, experiment.emit
    waiting, active = deque(planned), list[Job]()
    rows, failures = dict[Key, Sequence[ScoreRow]](), dict[Key, AttnkitError]()
    terminated = stopped = False
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=process_folder())))
        stack.callback(close, active)
        while active or (waiting and not stop.requested):
            while waiting and len(active) < jobs and not stop.requested:
                if (job := start_job(start, folder / f"{len(waiting)}.txt", waiting[0], stop)) is not None:
                    active.append(job)
                    waiting.popleft()
            if stop.requested and not terminated:
                terminated = True
                for job in active:
                    job.process.terminate()
            ready = wait([job.connection for job in active], POLL)
            for job in [job for job in active if job.connection in ready]:
                message = job.receive()
                if isinstance(message, Event):
                    emit(message)
                    continue
                active.remove(job)
                job.close()
                if message.error is None:
                    rows[job.key] = message.rows
                elif stop.requested and isinstance(message.error, StoppedError):
                    stopped = True
                else:
                    failures[job.key] = message.error
                    variant, seed = job.key
                    if message.details:
                        emit(NoteEvent(message.details, variant=variant, seed=seed))
                    emit(events.FailedEvent(str(message.error), message.error.code, variant=variant, seed=seed))
    lines = [f"{name} seed {seed}: {error}" for (name, seed), error in failures.items()]
    if stop.requested and (stopped or waiting):
        failed = "".join(f"; failed before: {line}" for line in lines)
        raise StoppedError(f"stopped by {stop.requested}; all progress is saved{failed}; {AGAIN}")
    comparison = None
    if finished := [key for key in planned if key in rows]:
        comparison = experiment.compare(finished, [row for key in finished for row in rows[key]])
    for failure in failures.values():
        raise type(failure)("\n".join(lines))
    return comparison


def start_job(start: Start, output: Path, key: Key, stop: StopSignals) -> Job | None:
    """Start the process of a run; return None if a signal arrived instead.

    Raises MemoryLimitError if the process from which others are forked was killed.
    """
    try:
        return Job(start, output, key)
    except (EOFError, ConnectionError) as error:
        time.sleep(POLL)  # a signal to the process group reaches this process as well
        if stop.requested:
            return None
        raise MemoryLimitError(
            f"the process that starts the runs was killed, probably because memory ran out; {AGAIN}"
        ) from error
