"""Points as tables, and as one object for programs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnkit import mechanisms
from attnkit.bench.plan import BASELINE, PASSES, Workload
from attnkit.bench.schedule import Fit, Measure, Point, fit
from attnkit.show.table import NONE, Cell, Column, Table

SHORT = {PASSES[0]: "forward", PASSES[1]: "+backward"}


def tables(points: Sequence[Point], workload: Workload) -> list[Table]:
    """The measurements, and how they grow."""
    return [points_table(points, workload), exponents_table(points)]


def points_table(points: Sequence[Point], workload: Workload) -> Table:
    """A row for each length and mechanism: time, ratio to the baseline and peak of each pass."""
    columns = [Column("length"), Column("mechanism", "left", key=True)]
    for number, kind in enumerate(PASSES):
        name = SHORT[kind]
        columns += [
            Column(name),
            Column(f"x {BASELINE}", priority=1),
            Column(f"{name} peak", priority=3 - number),
        ]
    rows = []
    for point in points:
        cells = [
            Cell(f"{point.length:,}", {"length": point.length}),
            Cell(point.label, {"mechanism": point.label}),
        ]
        for kind in PASSES:
            cells += _cells(kind.replace("+", "_"), point.passes[kind], point.label == BASELINE)
        rows.append(tuple(cells))
    return Table(title(workload), tuple(columns), tuple(rows), tuple(_notes(points)))


def exponents(points: Sequence[Point]) -> dict[str, dict[str, Fit | None]]:
    """Label -> the fits of the time of each pass, and of the peak of the last."""
    fits: dict[str, dict[str, Fit | None]] = {}
    for label in dict.fromkeys(point.label for point in points):
        curve = [point for point in points if point.label == label]
        fits[label] = {
            kind: fit([(p.length, p.passes[kind].seconds or 0) for p in curve]) for kind in PASSES
        }
        fits[label]["memory"] = fit([(p.length, p.passes[PASSES[1]].bytes or 0) for p in curve])
    return fits


def exponents_table(points: Sequence[Point]) -> Table:
    """A row for each mechanism: how its time and memory grow."""
    fits = exponents(points)
    columns = (
        Column("mechanism", "left"),
        *(Column(f"time {SHORT[kind]}") for kind in PASSES),
        Column("memory +backward"),
        Column("lengths", "left", priority=1),
    )
    rows = []
    for label, one_fits in fits.items():
        used = [one for one in one_fits.values() if one is not None]
        ends = [end for one in used for end in (one.low, one.high)]
        span = f"{min(ends):,} to {max(ends):,}" if ends else NONE
        texts = (f"{one.exponent:.2f}" if one else NONE for one in one_fits.values())
        rows.append((Cell(label), *map(Cell, texts), Cell(span)))
    note = "value ~ length ** exponent, by least squares in log-log over 2,048 to 16,384"
    return Table("exponents", columns, tuple(rows), (f"{note}, or over the measured lengths",))


def record(points: Sequence[Point], workload: Workload) -> dict[str, Any]:
    """Everything, for programs."""
    values = workload._asdict() | {"plugins": [str(path) for path in workload.plugins]}
    return {
        "setting": values,
        "baseline": BASELINE,
        "points": [
            {
                "mechanism": point.label,
                "length": point.length,
                **{kind: measure._asdict() for kind, measure in point.passes.items()},
            }
            for point in points
        ],
        "exponents": {
            label: {name: one._asdict() if one else None for name, one in one_fits.items()}
            for label, one_fits in exponents(points).items()
        },
    }


def title(workload: Workload) -> str:
    """What was measured, in a line."""
    what = "whole layer with projections" if workload.layer else "attention only"
    sight = "causal" if workload.causal else "full"
    rows = "" if workload.batch == 1 else f"batch {workload.batch}, "
    shape = f"{rows}{workload.heads} heads of {workload.head_width}"
    return f"{what}, {sight}, {shape}, {workload.dtype}, {workload.device}"


def duration(seconds: float) -> str:
    """A short time for people: three digits."""
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    unit = next((unit for unit, size in units.items() if seconds >= size), "ns")
    return f"{_digits(seconds / units.get(unit, 1e-9))} {unit}"


def amount(size: float) -> str:
    """Bytes for people: three digits, powers of 1000."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= one:
            return f"{_digits(size / one)} {unit}"
    return f"{size:.0f} B"


def _digits(value: float) -> str:
    return f"{value:,.{max(0, 2 - math.floor(math.log10(max(value, 1e-9))))}f}"


def _cells(name: str, measure: Measure, baseline: bool) -> list[Cell]:
    """Time, ratio and peak of one pass."""
    seconds, ratio, size = measure.seconds, measure.ratio, measure.bytes
    fields: Mapping[str, Any] = {f"{name}_seconds": seconds, f"{name}_failure": measure.failure}
    time = duration(seconds) if seconds is not None else measure.failure
    speedup = NONE if ratio is None or baseline else f"{ratio:.2f}"
    return [
        Cell(time, fields),
        Cell(speedup, {f"{name}_ratio": ratio}),
        Cell(amount(size) if size is not None else NONE, {f"{name}_bytes": size}),
    ]


def _notes(points: Sequence[Point]) -> list[str]:
    notes = [
        f"x {BASELINE}: how many times faster than torch's scaled_dot_product_attention in the same"
        " rounds; medians over the rounds",
        "peak: memory beyond inputs, parameters and libraries",
    ]
    words = {point.label.partition(":")[0] for point in points} & {*mechanisms.names()}
    if turning := sorted(word for word in words if mechanisms.facts(word).layered):
        notes.append(f"{', '.join(turning)}: mean time of its layers, peak of the largest")
    reasons = [m.why for point in points for m in point.passes.values() if m.why]
    return notes + list(dict.fromkeys(reasons))
