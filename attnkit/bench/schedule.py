"""Time and memory of mechanisms by length, and exponents of their growth."""

import math
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attnkit.bench.plan import PASSES, Candidate, Sweep, Workload
from attnkit.device import starting_processes
from attnkit.storage.files import process_folder

START = 60.0
"""Maximum seconds for a process to import, build and warm up."""
PRELOAD = ["attnkit.bench.worker", "torch.fx.experimental.symbolic_shapes"]
"""Modules that the fork server imports; autograd imports the second one on first use."""
LOW, HIGH = 2048, 16384
"""Range of lengths for fitting exponents: below it fixed costs matter, above it few mechanisms are measured."""


class Measure(NamedTuple):
    """Measurement of one pass of one mechanism at one length."""

    seconds: float | None = None
    """Median over rounds."""
    samples: tuple[float, ...] = ()
    ratio: float | None = None
    """Time of the baseline divided by that of the mechanism, median over rounds."""
    bytes: int | None = None
    """Peak memory beyond inputs, parameters and libraries."""
    failure: str = ""
    """Reason of a failure in one or two words."""
    why: str = ""
    """The reason as a sentence."""


class Point(NamedTuple):
    """Measurements of one mechanism at one length."""

    label: str
    length: int
    passes: Mapping[str, Measure]


class Fit(NamedTuple):
    """Power law: value ~ length ** exponent between two lengths."""

    exponent: float
    low: int
    high: int


def measure(
    sweeps: Sequence[Sweep], workload: Workload, note: Callable[[str], object] = lambda _: None
) -> Iterator[Point]:
    """Yield measurements length by length, in the order of the sweeps; `note` is called with the progress.

    A failed pass is skipped at longer lengths, and so is the backward pass after a failed forward pass.
    """
    failed = dict[tuple[str, str], Measure]()
    for length in sorted({length for sweep in sweeps for length in sweep.lengths}):
        for candidate in (sweep.candidate for sweep in sweeps if length in sweep.lengths):
            note(f"length {length:,}: {candidate.label}")
            passes, previous = dict[str, Measure](), Measure()
            for kind in PASSES:
                previous = failed.get((candidate.label, kind), previous)
                measurement = previous if previous.failure else _measure(workload, candidate, length, kind)
                if measurement.failure:
                    previous = failed[candidate.label, kind] = measurement._replace(why="")
                passes[kind] = measurement
            yield Point(candidate.label, length, passes)


def _measure(workload: Workload, candidate: Candidate, length: int, kind: str) -> Measure:
    """Measure the first run of a pass, and then rounds in which it alternates with the baseline."""
    measurement, rounds = Measure(), list[tuple[float, float]]()
    where, budget = f"{candidate.label} at {length:,}", f"{workload.budget:g} s"
    try:
        for name, value in _messages(workload, candidate, length, kind):
            if name == "first":
                measurement = Measure(value[0], (value[0],), bytes=value[1])
            elif name == "round":
                rounds.append(value)
            elif name == "error" and measurement.seconds is None:
                text = "out of memory" if value == "memory" else value
                failure = text if value == "memory" else "failed"
                measurement = Measure(failure=failure, why=f"{where}: {text}")
    except TimeoutError:
        if measurement.seconds is None:
            why = f"{where} exceeded the budget of {budget} per pass (--budget)"
            measurement = Measure(failure=f"> {budget}", why=why)
    if not rounds:
        return measurement
    samples = tuple(seconds for seconds, _ in rounds)
    ratio = statistics.median(base / seconds for seconds, base in rounds)
    return measurement._replace(seconds=statistics.median(samples), samples=samples, ratio=ratio)


def _messages(workload: Workload, *request: Any) -> Iterator[tuple[str, Any]]:
    """Yield the messages of a new process of the fork server. Raises TimeoutError if a message is late."""
    from attnkit.bench.worker import serve

    context, parent = multiprocessing.get_context("forkserver"), multiprocessing.current_process()
    context.set_forkserver_preload(PRELOAD)
    parent._config["tempdir"] = str(process_folder())  # type: ignore[attr-defined]
    connection, child = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(child, workload, *request), daemon=True)
    try:
        with starting_processes():
            process.start()
    except (EOFError, ConnectionError):
        yield "error", "the process that starts the other processes was killed"
        return
    child.close()
    try:
        timeout = START + workload.budget
        while connection.poll(timeout):
            message = connection.recv()
            yield message
            timeout = workload.budget + START * (message[0] != "ready")
        raise TimeoutError
    except (EOFError, ConnectionError):
        process.join(5)
        if code := process.exitcode:  # the system kills (signal 9) processes with too much memory
            yield "error", "memory" if code == -9 else f"the process ended with code {code}"
    finally:
        process.kill()
        process.join()
        process.close()
        connection.close()


def fit(curve: Sequence[tuple[int, float]]) -> Fit | None:
    """Fit a power law to (length, value) pairs, ascending, by least squares on logarithms; None for fewer than two.

    Fits lengths in LOW..HIGH, or all if fewer than two are in that range.
    """
    usable = [(length, value) for length, value in curve if value > 0]
    in_range = [(length, value) for length, value in usable if LOW <= length <= HIGH]
    fitted = in_range if len(in_range) > 1 else usable
    if len(fitted) < 2:
        return None
    xs, ys = ([math.log(number) for number in column] for column in zip(*fitted, strict=True))
    return Fit(statistics.linear_regression(xs, ys).slope, fitted[0][0], fitted[-1][0])
