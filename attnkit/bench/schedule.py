"""The order of measuring: length by length, each candidate alone for memory, then all for time."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from attnkit.bench.growth import expected
from attnkit.bench.plan import BASELINE, PASSES, Candidate, Sweep, Workload
from attnkit.bench.process import MeasurementTimeoutError, MeasuringProcess
from attnkit.memory import free_memory

SLACK = 3.0
"""A race may last so many times what the probes took."""


class Measure(NamedTuple):
    """One pass of one mechanism at one length."""

    seconds: float | None = None
    """Median over the rounds."""
    samples: tuple[float, ...] = ()
    ratio: float | None = None
    """Seconds of the baseline by its own, the median over the rounds that have both."""
    bytes: int | None = None
    """Peak beyond the inputs, parameters and libraries."""
    failure: str = ""
    """Why it could not be measured, in a word or two."""
    why: str = ""
    """The same as a sentence."""


class Point(NamedTuple):
    """One mechanism at one length."""

    label: str
    length: int
    passes: Mapping[str, Measure]


def measure(
    sweeps: Sequence[Sweep], workload: Workload, note: Callable[[str], object] = lambda _: None
) -> Iterator[Point]:
    """Points length by length, in the order of the sweeps; `note` is told what goes on."""
    workload.check()
    worker = MeasuringProcess(workload)
    try:
        schedule = _Schedule(worker, workload, note)
        for length in sorted({length for sweep in sweeps for length in sweep.lengths}):
            candidates = [sweep.candidate for sweep in sweeps if length in sweep.lengths]
            yield from schedule.points(candidates, length)
    finally:
        worker.close()


class _Schedule:
    """What is known so far: first runs by label and pass, and what failed."""

    def __init__(
        self, worker: MeasuringProcess, workload: Workload, note: Callable[[str], object]
    ) -> None:
        self.worker, self.workload, self.note = worker, workload, note
        self.times: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        self.sizes: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        self.failed: dict[tuple[str, str], Measure] = {}

    def points(self, candidates: Sequence[Candidate], length: int) -> list[Point]:
        """All candidates at one length."""
        first = {}
        for candidate in candidates:
            self.note(f"length {length:,}: {candidate.label}")
            first[candidate.label] = self._probe(candidate, length)
        self.note(f"length {length:,}: all in turn")
        entries = []
        for candidate in candidates:
            passes = first[candidate.label].items()
            seconds = {kind: one.seconds for kind, one in passes if one.seconds is not None}
            if seconds:
                entries.append((candidate, seconds))
        rounds = self._race(length, entries) if entries else {}
        for (label, kind), times in rounds.items():  # first runs stay where the race has none
            base = rounds.get((BASELINE, kind), {})
            ratios = [base[number] / times[number] for number in times if number in base]
            first[label][kind] = first[label][kind]._replace(
                seconds=statistics.median(times.values()),
                samples=tuple(times.values()),
                ratio=statistics.median(ratios) if ratios else None,
            )
        return [Point(label, length, passes) for label, passes in first.items()]

    def _probe(self, candidate: Candidate, length: int) -> dict[str, Measure]:
        """Each pass once, by itself, unless it is known that it cannot be."""
        label, measures = candidate.label, dict[str, Measure]()
        for kind in PASSES:
            if (expectation := self._expected_failure(label, kind, length)) is not None:
                measures[kind] = expectation
        todo = [kind for kind in PASSES if kind not in measures]
        failure: Measure | None = None
        try:
            answers = self.worker.request(
                "probe", candidate, length, todo, seconds=self.workload.budget
            )
            for kind, value in answers if todo else ():
                if kind == "ready":
                    continue
                if kind == "error":
                    memory = value == "memory"
                    why = f"{label} at {length:,}: {'out of memory' if memory else value}"
                    failure = Measure(failure="out of memory" if memory else "failed", why=why)
                    continue
                seconds, size = value
                measures[kind] = Measure(seconds=seconds, bytes=size)
                self.times[label, kind].append((length, seconds))
                self.sizes[label, kind].append((length, size or 0))
        except MeasurementTimeoutError:
            failure = self._slow(label, length)
        for kind in PASSES:
            if kind not in measures:
                assert failure is not None
                measures[kind] = self.failed[label, kind] = failure
        return {kind: measures[kind] for kind in PASSES}

    def _expected_failure(self, label: str, kind: str, length: int) -> Measure | None:
        """Why a pass need not be tried: it failed at a shorter length, or will by all signs."""
        if (label, kind) in self.failed:
            before = self.failed[label, kind]
            return before._replace(why="") if before.failure else before
        seconds = expected(self.times[label, kind], length)
        if seconds is not None and seconds > self.workload.budget:
            return self._slow(label, length, seconds)
        size = expected(self.sizes[label, kind], length)
        free = free_memory() if self.workload.device == "cpu" else None
        if size is not None and free is not None and size > free:
            why = f"{label} at {length:,} would need about {size / 1e9:.0f} GB; {free / 1e9:.0f}"
            return Measure(failure="out of memory", why=f"{why} GB are free")
        return None

    def _slow(self, label: str, length: int, seconds: float | None = None) -> Measure:
        budget = f"{self.workload.budget:g} s"
        taken = f"would take about {seconds:.0f} s" if seconds else "took longer"
        why = f"{label} at {length:,} {taken}; the budget of a pass is {budget} (--budget)"
        return Measure(failure=f"> {budget}", why=why)

    def _race(
        self, length: int, entries: list[tuple[Candidate, dict[str, float]]]
    ) -> dict[tuple[str, str], dict[int, float]]:
        """Samples by label and pass and round; one by one where not all fit into memory at once."""
        rounds: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        total = sum(seconds for _, known in entries for seconds in known.values())
        try:
            for kind, value in self.worker.request(
                "race", length, entries, seconds=self.workload.budget + SLACK * total
            ):
                if kind == "error":
                    break
                number, label, name, seconds = value
                rounds[label, name][number] = seconds
            else:
                return rounds
        except MeasurementTimeoutError:
            return rounds
        base = [entry for entry in entries if entry[0].label == BASELINE]
        others = [entry for entry in entries if entry[0].label != BASELINE]
        if len(entries) > len(base) + 1:
            for entry in others:
                for key, samples in self._race(length, [*base, entry]).items():
                    rounds[key] = samples
        return rounds
