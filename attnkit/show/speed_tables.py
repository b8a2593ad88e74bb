"""The speed of training and decoding as tables: parts of a step, and what the machine can do."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attnkit.show.benchmark_table import amount, duration
from attnkit.show.table import NONE, Cell, Column, Table

if TYPE_CHECKING:
    from attnkit.bench.decoding_speed import DecodingSpeed
    from attnkit.bench.step_parts import Speed, StepPart
    from attnkit.bench.training_speed import TrainingSpeed

LEAST = 0.0005
"""Share of a step below which a part is not listed."""


def training_table(title: str, speed: "TrainingSpeed") -> Table:
    """The parts of an average update, with what was measured of the whole below."""
    return _parts_table(f"{title}: {speed.tokens_per_second:,.0f} tokens/s", speed.parts,
                        speed.seconds, "updates", list(_training_notes(speed)))  # fmt: skip


def decoding_table(title: str, speed: "DecodingSpeed") -> Table:
    """The parts of the decoding of all lines, with what was measured of the whole below."""
    return _parts_table(f"{title}: {speed.lines_per_second:,.1f} lines/s", speed.parts,
                        speed.seconds, "decoding", list(_decoding_notes(speed)))  # fmt: skip


def parts_columns(passes: Sequence[str]) -> tuple[Column, ...]:
    """The part, its time in each pass, and its share of the whole."""
    return (Column("part", "left"), *map(Column, passes), Column("share"))


def _parts_table(
    title: str, parts: "Sequence[StepPart]", seconds: float, step: str, notes: list[str]
) -> Table:
    """Shares of the profiled steps, as times of one that was not slowed by the profiler."""
    whole = sum(part.total for part in parts)
    passes = ("forward", "backward", "total") if any(p.backward for p in parts) else ("total",)
    rows = []
    for part in parts:
        if (share := part.total / whole) < LEAST:
            continue
        times = {kind: getattr(part, kind) / whole * seconds for kind in passes}
        cells = [
            Cell(duration(value) if value else NONE, {f"{kind}_seconds": value})
            for kind, value in times.items()
        ]
        name = Cell(part.name, {"part": part.name})
        rows.append((name, *cells, Cell(f"{share:.1%}", {"share": share})))
    note = f"shares were measured under the profiler, times are those shares of {step} without it"
    return Table(title, parts_columns(passes), tuple(rows), (*notes, note))


def _training_notes(speed: "TrainingSpeed") -> Iterator[str]:
    yield (
        f"{duration(speed.seconds)} an update, mean of {speed.updates}; {speed.precision} on "
        f"{speed.device}, {speed.threads} thread{'s' * (speed.threads != 1)}"
    )
    sides = {"source": speed.padding_source, "target": speed.padding_target}
    padding = [f"{share:.1%} of the {side}" for side, share in sides.items() if share is not None]
    yield f"padding: {', '.join(padding)} tokens"
    yield _products(speed)
    if speed.peak_memory_bytes is not None:
        yield f"peak memory: {amount(speed.peak_memory_bytes)}"


def _decoding_notes(speed: "DecodingSpeed") -> Iterator[str]:
    yield (
        f"{speed.lines:,} lines in {duration(speed.seconds)}, {speed.search}; on {speed.device}, "
        f"{speed.threads} thread{'s' * (speed.threads != 1)}"
    )
    yield (
        f"{speed.tokens_per_second:,.0f} tokens/s of output; a line by itself takes "
        f"{duration(speed.one_line_seconds)}"
    )
    yield _products(speed)
    if speed.peak_memory_bytes is not None:
        yield f"peak memory: {amount(speed.peak_memory_bytes)}"


def _products(speed: "Speed") -> str:
    """How near the matrix products come to the machine's peak."""
    reached = speed.operations_per_second
    peaks = ", ".join(f"{reached / peak:.0%} of the {name} peak of {peak / 1e9:,.0f}"
                      for name, peak in speed.peaks.items())  # fmt: skip
    return (
        f"matrix products: {speed.operations_per_token / 1e6:,.1f} million operations a token, "
        f"{reached / 1e9:,.1f} billion a second: {peaks} (large products in this run)"
    )
