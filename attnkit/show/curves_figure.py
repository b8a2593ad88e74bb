"""Curves as a PNG, SVG or PDF."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnkit.runs.curves import FRONT, Curves
from attnkit.show.curves_chart import number
from attnkit.show.figure import Picture, matplotlib_defaults, rendered, require
from attnkit.text import safe_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osv^Dd"
DASHES = ("-", "--", ":", "-.")
COLORS = 10
"""Number of colors in matplotlib's default cycle."""
ACROSS = 3
COMPACT_FROM = 1e4
"""Minimum of an axis' upper end from which its numbers are written as 20k and 1.5M."""
MAX_TICKS = 8
"""Approximate maximum number of labels of a logarithmic axis; determines their minimum distance."""
PANEL = (4.2, 3.2)  # inches
LEGEND_LINE = 1.3
"""Height of a line of the legend, relative to the font size."""


def picture(
    plots: Sequence[Curves],
    format: str,
    order: Sequence[str] = (),
    *,
    size: tuple[float, float] | None = None,
    font: float = 10.0,
) -> Picture:
    """Draw curves, one panel each, with one legend; equal curves give equal bytes.

    Lines differ in dashes as well as in colors, so that they are distinct in gray prints.

    Args:
        order: names of the series that get the first colors, so that several pictures use the same colors.
        size: width and height of the picture in inches; None: from the number of panels.
        font: font size in points.

    Raises:
        UsageError: If the format is not png, svg or pdf.
        UnavailableError: If matplotlib is not installed.
    """
    require(format)
    import matplotlib
    from matplotlib.figure import Figure

    names = list(dict.fromkeys((*order, *(series.name for curves in plots for series in curves.series))))
    across = min(ACROSS, len(plots))
    down = math.ceil(len(plots) / across)
    with matplotlib_defaults([*names, *(curves.title for curves in plots)]) as missing:
        matplotlib.rcParams["font.size"] = font
        legend_height = len(names) * LEGEND_LINE * font / 72
        default_size = (PANEL[0] * across + 2, max(PANEL[1] * down, legend_height))
        figure = Figure(figsize=size or default_size, layout="constrained")
        panels = list(figure.subplots(down, across, squeeze=False).flat)
        handles: dict[str, Any] = {}
        for axes, curves in zip(panels, plots, strict=False):
            handles |= _draw(axes, curves, names)
        for axes in panels[len(plots) :]:
            axes.remove()
        shown = [name for name in names if name in handles]
        labels = [safe_text(name) + _seeds(name, plots) for name in shown]
        figure.legend([handles[name] for name in shown], labels, loc="outside right upper", fontsize="small")
        data = rendered(figure, format, ", ".join(curves.title for curves in plots))
    return Picture(data, tuple(missing))


def _draw(axes: "Axes", curves: Curves, names: Sequence[str]) -> dict[str, Any]:
    """Draw one panel; return a line of each series for the legend."""
    from matplotlib.ticker import EngFormatter

    handles = {}
    for series in curves.series:
        turn, place = divmod(names.index(series.name), COLORS)
        style: dict[str, Any] = {
            "color": f"C{place}",
            "linestyle": DASHES[(turn + place) % len(DASHES)],
            "linewidth": 1.4 if len(series.lines) == 1 else 0.9,
            "markersize": 5,
        }
        for line in series.lines:
            with_markers = series.name != FRONT and (len(line) == 1 or curves.log_x)
            marker = MARKERS[(turn + place) % len(MARKERS)] if with_markers else ""
            xs, ys = zip(*line, strict=True)
            (handles[series.name],) = axes.plot(xs, ys, marker=marker, **style)
    if curves.from_zero:
        axes.set_xlim(left=0)
    if curves.log_x:
        axes.set_xscale("log", base=2)
        ticks = _apart(sorted({x for x, _ in curves.points}))
        axes.set_xticks(ticks, [number(x) for x in ticks], rotation=45)
        axes.minorticks_off()
    for axis, high in ((axes.xaxis, axes.get_xlim()[1]), (axes.yaxis, axes.get_ylim()[1])):
        if high >= COMPACT_FROM and axis.get_scale() == "linear":
            axis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(safe_text(curves.x))
    axes.set_ylabel(safe_text(curves.title))
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return handles


def _apart(values: Sequence[float]) -> list[float]:
    """Return those of the ascending values whose labels do not overlap on a logarithmic axis."""
    min_distance = 0.999 * math.log(values[-1] / values[0]) / MAX_TICKS
    ticks = list(values[:1])
    for value in values[1:]:
        if math.log(value / ticks[-1]) >= min_distance:
            ticks.append(value)
    return ticks


def _seeds(name: str, plots: Sequence[Curves]) -> str:
    """Return the number of lines of a series, if there are several, for the legend."""
    count = max(len(series.lines) for curves in plots for series in curves.series if series.name == name)
    return f" ({count} seeds)" if count > 1 else ""
