"""Points as a picture: time and memory over the length, both axes logarithmic."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnkit.bench.plan import BASELINE, PASSES, Workload
from attnkit.bench.schedule import Point
from attnkit.errors import UsageError
from attnkit.show.benchmark_table import title
from attnkit.show.figure import FORMATS, require, suffix
from attnkit.storage.files import replacing

MARKERS = "osv^"  # colours repeat after ten lines, so markers change


def check(path: Path) -> None:
    """Raise UsageError or UnavailableError where `draw` could not write such a file."""
    if suffix(path) not in FORMATS:
        endings = ", ".join(f".{name}" for name in FORMATS)
        raise UsageError(f"--plot {path}: the name must end in {endings}")
    require(suffix(path), "--plot")


def draw(points: Sequence[Point], workload: Workload, path: Path) -> None:
    """Write the picture; its format is the name's suffix.

    Raises:
        OutputPathError, OutputError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    labels = list(dict.fromkeys(point.label for point in points))
    for number, label in enumerate(labels):
        curve = [
            (point.length, point.passes[PASSES[1]]) for point in points if point.label == label
        ]
        style: dict[str, Any] = {"marker": MARKERS[number // 10 % 4], "markersize": 4}
        style["label"] = label
        if label == BASELINE:
            style |= {"color": "black", "linestyle": "--"}
        times = [(length, m.seconds) for length, m in curve if m.seconds]
        sizes = [(length, m.bytes / 1e6) for length, m in curve if m.bytes]
        for axes, values in ((left, times), (right, sizes)):
            axes.plot([x for x, _ in values], [y for _, y in values], **style)
    lengths = sorted({point.length for point in points})
    for axes, name in ((left, f"seconds, {PASSES[1]}"), (right, f"peak MB, {PASSES[1]}")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=45)
        axes.set_xlabel("length")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    figure.suptitle(title(workload))
    with replacing(path) as prepared:
        figure.savefig(prepared, format=suffix(path))
