"""The speed of training and decoding as tables: parts of a step, and what the machine can do."""

from typing import TYPE_CHECKING

from attnkit.show.benchmark_table import amount, duration
from attnkit.show.table import NONE, Cell, Column, Table

if TYPE_CHECKING:
    from attnkit.bench.decoding_speed import DecodingSpeed
    from attnkit.bench.step_parts import Speed
    from attnkit.bench.training_speed import TrainingSpeed

LEAST = 0.0005
"""Share of a step below which a part is not listed."""


def training_table(title: str, speed: "TrainingSpeed") -> Table:
    """The parts of an average update, with what was measured of the whole below."""
    sides = {"source": speed.padding_source, "target": speed.padding_target}
    padding = [f"{share:.1%} of the {side}" for side, share in sides.items() if share is not None]
    notes = [
        f"{duration(speed.seconds)} an update, mean of {speed.updates}; {speed.precision} "
        f"{_place(speed)}",
        f"padding: {', '.join(padding)} tokens",
    ]
    return _parts_table(
        f"{title}: {speed.tokens_per_second:,.0f} tokens/s", speed, "updates", notes
    )


def decoding_table(title: str, speed: "DecodingSpeed") -> Table:
    """The parts of the decoding of all lines, with what was measured of the whole below."""
    notes = [
        f"{speed.lines:,} lines in {duration(speed.seconds)}, {speed.search}; {_place(speed)}",
        f"{speed.tokens_per_second:,.0f} tokens/s of output; a line by itself takes "
        f"{duration(speed.one_line_seconds)}",
    ]
    return _parts_table(f"{title}: {speed.lines_per_second:,.1f} lines/s", speed, "decoding", notes)


def _parts_table(title: str, speed: "Speed", step: str, notes: list[str]) -> Table:
    """Shares of the profiled steps, as times of one that was not slowed by the profiler."""
    parts = speed.parts
    whole = sum(part.total for part in parts)
    passes = ("forward", "backward", "total") if any(p.backward for p in parts) else ("total",)
    rows = []
    for part in parts:
        if (share := part.total / whole) < LEAST:
            continue
        times = {kind: getattr(part, kind) / whole * speed.seconds for kind in passes}
        cells = [
            Cell(duration(value) if value else NONE, {f"{kind}_seconds": value})
            for kind, value in times.items()
        ]
        name = Cell(part.name, {"part": part.name})
        rows.append((name, *cells, Cell(f"{share:.1%}", {"share": share})))
    reached = speed.operations_per_second
    peaks = ", ".join(
        f"{reached / peak:.0%} of the {name} peak of {peak / 1e9:,.0f}"
        for name, peak in speed.peaks.items()
    )
    notes.append(
        f"matrix products: {speed.operations_per_token / 1e6:,.1f} million operations a token, "
        f"{reached / 1e9:,.1f} billion a second: {peaks} (large products in this run)"
    )
    if speed.peak_memory_bytes is not None:
        notes.append(f"peak memory: {amount(speed.peak_memory_bytes)}")
    notes.append(
        f"shares were measured under the profiler, times are those shares of {step} without it"
    )
    columns = (Column("part", "left"), *map(Column, passes), Column("share"))
    return Table(title, columns, tuple(rows), tuple(notes))


def _place(speed: "Speed") -> str:
    return f"on {speed.device}, {speed.threads} thread{'s' * (speed.threads != 1)}"
