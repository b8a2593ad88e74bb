"""Points as a picture: time and memory over the length, both axes logarithmic."""

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnkit.bench.plan import BASELINE, PASSES, Workload
from attnkit.bench.schedule import Point
from attnkit.errors import UnavailableError, UsageError
from attnkit.show.benchmark_table import title
from attnkit.storage.files import replacing

SUFFIXES = (".png", ".svg", ".pdf")
MARKERS = "osv^"
"""Colours repeat after ten lines, so markers change."""


def check(path: Path) -> None:
    """Raise UsageError or UnavailableError where `draw` could not write such a file."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--plot {path}: the name must end in {', '.join(SUFFIXES)}")
    if find_spec("matplotlib") is None:
        raise UnavailableError("--plot needs matplotlib: pip install 'attnkit[plot]'")


def draw(points: Sequence[Point], setting: Workload, path: Path) -> None:
    """Write the picture; its format is the name's suffix.

    Raises:
        OutputPathError, OutputError: the file cannot be written.
    """
    figures = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    labels = list(dict.fromkeys(point.label for point in points))
    for number, label in enumerate(labels):
        own = [(point.length, point.passes[PASSES[1]]) for point in points if point.label == label]
        style: dict[str, Any] = {"marker": MARKERS[number // 10 % 4], "markersize": 4}
        style["label"] = label
        if label == BASELINE:
            style |= {"color": "black", "linestyle": "--"}
        times = [(length, m.seconds) for length, m in own if m.seconds]
        sizes = [(length, m.bytes / 1e6) for length, m in own if m.bytes]
        for axes, curve in ((left, times), (right, sizes)):
            axes.plot([x for x, _ in curve], [y for _, y in curve], **style)
    lengths = sorted({point.length for point in points})
    for axes, name in ((left, f"seconds, {PASSES[1]}"), (right, f"peak MB, {PASSES[1]}")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=45)
        axes.set_xlabel("length")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    figure.suptitle(title(setting))
    with replacing(path) as prepared:
        figure.savefig(prepared, format=path.suffix[1:])
