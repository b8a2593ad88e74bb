"""The points of a benchmark as curves: time and memory over the length."""

from collections.abc import Sequence

from attnkit.bench.plan import PASSES
from attnkit.bench.schedule import Point
from attnkit.runs.curves import Curves, Series


def curves(points: Sequence[Point]) -> list[Curves]:
    """Seconds and peak memory of a forward and backward pass, a series a mechanism."""
    drawn = []
    for title in ("seconds", "peak MB"):
        lines: dict[str, list[tuple[float, float]]] = {}
        for point in points:
            measured = point.passes[PASSES[1]]
            y = measured.seconds if title == "seconds" else measured.bytes and measured.bytes / 1e6
            if y:
                lines.setdefault(point.label, []).append((float(point.length), y))
        series = tuple(Series(label, (tuple(line),)) for label, line in lines.items())
        drawn.append(Curves(f"{title}, {PASSES[1]}", "length", series, log_x=True, log_y=True))
    return drawn
