"""Tables of measured time and memory of mechanisms, training and decoding."""

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from attnkit import mechanisms
from attnkit.bench.plan import BASELINE, PASSES, Workload
from attnkit.bench.schedule import Fit, Point, fit
from attnkit.show.quantities import amount, short_duration
from attnkit.show.table import NONE, Column, Table, Value
from attnkit.text import counted

if TYPE_CHECKING:
    from attnkit.bench.decoding_speed import DecodingSpeed
    from attnkit.bench.speed import Speed
    from attnkit.bench.training_speed import TrainingSpeed

SHORT = {PASSES[0]: "forward", PASSES[1]: "+backward"}


def tables(points: Sequence[Point], workload: Workload) -> list[Table]:
    """Return the table of measurements, and the table of their growth."""
    return [points_table(points, workload), exponents_table(points)]


def points_table(points: Sequence[Point], workload: Workload) -> Table:
    """Return a row for each length and mechanism: time, ratio to the baseline and peak memory of each pass."""
    fields = [
        Column("length", lambda point: point.length, "{:,}"),
        Column("mechanism", lambda point: point.label, align="left", key=True),
    ]
    for number, kind in enumerate(PASSES):
        fields += _of_pass(kind, 3 - number)
    subject = "whole layer with projections" if workload.layer else "attention only"
    batch = "" if workload.batch == 1 else f"batch {workload.batch}, "
    title = (
        f"{subject}, {'causal' if workload.causal else 'full'}, {batch}{workload.heads} heads of "
        f"{workload.head_width}, {workload.dtype}, {workload.device}"
    )
    return Table.of(title, points, fields, _notes(points), record=_record)


def _of_pass(kind: str, priority: int) -> list[Column]:
    def ratio(point: Point) -> str:
        value = point.passes[kind].ratio
        return NONE if value is None or point.label == BASELINE else f"{value:.2f}"

    def time(point: Point) -> str:
        measure = point.passes[kind]
        return short_duration(measure.seconds) if measure.seconds is not None else measure.failure

    return [
        Column(SHORT[kind], time),
        Column(f"x {BASELINE}", ratio, priority=1),
        Column(f"{SHORT[kind]} peak", lambda p: p.passes[kind].bytes, amount, priority=priority),
    ]


def _record(point: Point) -> dict[str, Value]:
    """Return the values of a point for programs."""
    fields: dict[str, Value] = {"length": point.length, "mechanism": point.label}
    for kind, measure in point.passes.items():
        for name in ("seconds", "failure", "ratio", "bytes"):
            fields[f"{kind.replace('+', '_')}_{name}"] = getattr(measure, name)
    return fields


def exponents(points: Sequence[Point]) -> dict[str, dict[str, Fit | None]]:
    """Return, for each label, the fits of the time of each pass, and of the peak memory of the second."""
    fits: dict[str, dict[str, Fit | None]] = {}
    for label in dict.fromkeys(point.label for point in points):
        curve = [point for point in points if point.label == label]
        fits[label] = {kind: fit([(p.length, p.passes[kind].seconds or 0) for p in curve]) for kind in PASSES}
        fits[label]["memory"] = fit([(p.length, p.passes[PASSES[1]].bytes or 0) for p in curve])
    return fits


def exponents_table(points: Sequence[Point]) -> Table:
    """Return the exponents of the growth of time and memory with length, a row for each mechanism."""
    rows = []
    for label, fits in exponents(points).items():
        ends = [end for one_fit in fits.values() if one_fit for end in (one_fit.low, one_fit.high)]
        span = f"{min(ends):,} to {max(ends):,}" if ends else None
        rows.append([label, *(one_fit and one_fit.exponent for one_fit in fits.values()), span])
    titles = [*(f"time {SHORT[kind]}" for kind in PASSES), "memory +backward"]
    fields = [
        Column("mechanism", itemgetter(0), align="left"),
        *(Column(title, itemgetter(place), "{:.2f}") for place, title in enumerate(titles, 1)),
        Column("lengths", itemgetter(-1), align="left", priority=1),
    ]
    note = "value ~ length ** exponent, by least squares in log-log over 2,048 to 16,384"
    return Table.of("exponents", rows, fields, [f"{note}, or over the measured lengths"])


def record(points: Sequence[Point], workload: Workload) -> dict[str, Any]:
    """Return the JSON object of a benchmark."""
    return {
        "setting": workload._asdict() | {"plugins": [str(path) for path in workload.plugins]},
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
            label: {name: one_fit and one_fit._asdict() for name, one_fit in fits.items()}
            for label, fits in exponents(points).items()
        },
    }


def _notes(points: Sequence[Point]) -> list[str]:
    notes = [
        f"x {BASELINE}: speed relative to torch's scaled_dot_product_attention in the same rounds; "
        "medians over the rounds",
        "peak: memory beyond inputs, parameters and libraries",
    ]
    names = {point.label.partition(":")[0] for point in points} & {*mechanisms.names()}
    if layered := sorted(name for name in names if mechanisms.facts(name).layered):
        notes.append(f"{', '.join(layered)}: mean time of the layers, peak of the largest layer")
    reasons = [m.why for point in points for m in point.passes.values() if m.why]
    return notes + list(dict.fromkeys(reasons))


def training_table(title: str, speed: "TrainingSpeed") -> Table:
    """Return the cost of an update."""
    sides = {"source": speed.padding_source, "target": speed.padding_target}
    padding = [f"{share:.1%} of the {side}" for side, share in sides.items() if share is not None]
    rows = [
        ("speed", f"{speed.tokens_per_second:,.0f} tokens/s, {speed.precision} {_place(speed)}"),
        ("an update", f"{short_duration(speed.seconds)}, mean of {speed.updates}"),
        ("padding", f"{', '.join(padding)} tokens"),
    ]
    return Table.of_texts(title, ("measured", "value"), rows + _costs(speed))


def decoding_table(title: str, speed: "DecodingSpeed") -> Table:
    """Return the cost of decoding all lines."""
    rows = [
        ("speed", f"{speed.lines_per_second:,.1f} lines/s, {speed.tokens_per_second:,.0f} tokens/s {_place(speed)}"),
        ("all lines", f"{speed.lines:,} lines in {short_duration(speed.seconds)}, {speed.search}"),
        ("a line by itself", short_duration(speed.one_line_seconds)),
    ]
    return Table.of_texts(title, ("measured", "value"), rows + _costs(speed))


def _costs(speed: "Speed") -> list[tuple[str, str]]:
    """Return the speed of the matrix products, relative to peak speeds, and the peak memory."""
    reached = speed.operations_per_second
    peaks = ", ".join(
        f"{reached / peak:.0%} of the {name} peak of {peak / 1e9:,.0f}" for name, peak in speed.peaks.items()
    )
    products = (
        f"{speed.operations_per_token / 1e6:,.1f} million operations a token, "
        f"{reached / 1e9:,.1f} billion a second: {peaks} (large products in this run)"
    )
    memory = speed.peak_memory_bytes
    return [("matrix products", products), *([("peak memory", amount(memory))] if memory is not None else [])]


def _place(speed: "Speed") -> str:
    return f"on {speed.device}, {counted(speed.threads, 'thread')}"
