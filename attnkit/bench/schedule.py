"""The order of measuring: length by length, each subject alone for memory, then all for time."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from attnkit.bench.growth import expected
from attnkit.bench.measure import free_memory
from attnkit.bench.plan import BASELINE, PASSES, Candidate, Lane, Workload
from attnkit.bench.process import MeasuringProcess, TookTooLongError

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
    lanes: Sequence[Lane], setting: Workload, note: Callable[[str], object] = lambda _: None
) -> Iterator[Point]:
    """Points length by length, in the order of the lanes; `note` is told what goes on."""
    setting.check()
    worker = MeasuringProcess(setting)
    try:
        bench = _Bench(worker, setting, note)
        for length in sorted({length for lane in lanes for length in lane.lengths}):
            subjects = [lane.subject for lane in lanes if length in lane.lengths]
            yield from bench.length(subjects, length)
    finally:
        worker.close()


class _Bench:
    """What is known so far: first runs by label and pass, and what failed."""

    def __init__(
        self, worker: MeasuringProcess, setting: Workload, note: Callable[[str], object]
    ) -> None:
        self.worker, self.setting, self.note = worker, setting, note
        self.times: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        self.sizes: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        self.failed: dict[tuple[str, str], Measure] = {}

    def length(self, subjects: Sequence[Candidate], length: int) -> list[Point]:
        """All subjects at one length."""
        first = {}
        for subject in subjects:
            self.note(f"length {length:,}: {subject.label}")
            first[subject.label] = self._probe(subject, length)
        self.note(f"length {length:,}: all in turn")
        entries = [(s, self._known(first[s.label])) for s in subjects]
        rounds = self._race(length, [(s, known) for s, known in entries if known])
        return [
            Point(s.label, length, _with_times(first[s.label], s.label, rounds)) for s in subjects
        ]

    def _known(self, passes: Mapping[str, Measure]) -> dict[str, float]:
        return {kind: found.seconds for kind, found in passes.items() if found.seconds is not None}

    def _probe(self, subject: Candidate, length: int) -> dict[str, Measure]:
        """Each pass once, by itself, unless it is known that it cannot be."""
        found = {}
        for kind in PASSES:
            ahead = self._ahead(subject.label, kind, length)
            if ahead is not None:
                found[kind] = ahead
        todo = [kind for kind in PASSES if kind not in found]
        failure = None
        try:
            asked = self.worker.ask("probe", subject, length, todo, seconds=self.setting.budget)
            for kind, value in asked if todo else ():
                if kind == "ready":
                    continue
                if kind == "error":
                    failure = _failed(value, subject.label, length)
                    continue
                seconds, size = value
                found[kind] = Measure(seconds=seconds, bytes=size)
                self.times[subject.label, kind].append((length, seconds))
                self.sizes[subject.label, kind].append((length, size or 0))
        except TookTooLongError:
            failure = self._slow(subject.label, length)
        for kind in PASSES:
            if kind not in found:
                assert failure is not None
                found[kind] = self.failed[subject.label, kind] = failure
        return {kind: found[kind] for kind in PASSES}

    def _ahead(self, label: str, kind: str, length: int) -> Measure | None:
        """Why a pass need not be tried: it failed at a shorter length, or will by all signs."""
        if (label, kind) in self.failed:
            before = self.failed[label, kind]
            return before._replace(why="") if before.failure else before
        seconds = expected(self.times[label, kind], length)
        if seconds is not None and seconds > self.setting.budget:
            return self._slow(label, length, seconds)
        size = expected(self.sizes[label, kind], length)
        free = free_memory() if self.setting.device == "cpu" else None
        if size is not None and free is not None and size > free:
            why = f"{label} at {length:,} would need about {size / 1e9:.0f} GB; {free / 1e9:.0f}"
            return Measure(failure="out of memory", why=f"{why} GB are free")
        return None

    def _slow(self, label: str, length: int, seconds: float | None = None) -> Measure:
        budget = f"{self.setting.budget:g} s"
        taken = f"would take about {seconds:.0f} s" if seconds else "took longer"
        why = f"{label} at {length:,} {taken}; the budget of a pass is {budget} (--budget)"
        return Measure(failure=f"> {budget}", why=why)

    def _race(
        self, length: int, entries: list[tuple[Candidate, dict[str, float]]]
    ) -> dict[tuple[str, str], dict[int, float]]:
        """Samples by label and pass and round; one by one where not all fit into memory at once."""
        found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        if not entries:
            return found
        total = sum(seconds for _, known in entries for seconds in known.values())
        try:
            for kind, value in self.worker.ask(
                "race", length, entries, seconds=self.setting.budget + SLACK * total
            ):
                if kind == "error":
                    break
                number, label, name, seconds = value
                found[label, name][number] = seconds
            else:
                return found
        except TookTooLongError:
            return found
        base = [entry for entry in entries if entry[0].label == BASELINE]
        others = [entry for entry in entries if entry[0].label != BASELINE]
        if len(entries) > len(base) + 1:
            for entry in others:
                for key, samples in self._race(length, [*base, entry]).items():
                    found[key] = samples
        return found


def _with_times(
    first: Mapping[str, Measure], label: str, rounds: Mapping[tuple[str, str], Mapping[int, float]]
) -> dict[str, Measure]:
    """The measures of one subject with what the race found; first runs count where it has none."""
    found = {}
    for kind, measure in first.items():
        own, base = rounds.get((label, kind), {}), rounds.get((BASELINE, kind), {})
        ratios = [base[number] / own[number] for number in own if number in base]
        found[kind] = measure._replace(
            seconds=statistics.median(own.values()) if own else measure.seconds,
            samples=tuple(own.values()),
            ratio=statistics.median(ratios) if ratios else None,
        )
    return found


def _failed(text: str, label: str, length: int) -> Measure:
    if text == "memory":
        return Measure(failure="out of memory", why=f"{label} at {length:,}: out of memory")
    return Measure(failure="failed", why=f"{label} at {length:,}: {text}")
