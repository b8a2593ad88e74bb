"""Curves as a picture for print: PNG, SVG or PDF."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnkit.runs.curves import Plot
from attnkit.show.curves_chart import logarithmic_label
from attnkit.show.figure import Picture, matplotlib_defaults, rendered, require
from attnkit.text import safe_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osv^Dd"
DASHES = ("-", "--", ":", "-.")
COLOURS = 10
"""Colours of matplotlib's own cycle; after them the dashes and the markers change."""
ACROSS = 3
LONG = 1e4
"""Numbers from here on are written as 20k and 1.5M."""
PANEL = (4.2, 3.2)  # inches


def picture(plots: Sequence[Plot], format: str) -> Picture:
    """Draw plots side by side under one legend; the same plots give the same bytes.

    Raises:
        UsageError: no such format.
        UnavailableError: matplotlib is not installed.
    """
    require(format)
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(one.name for plot in plots for one in plot.series))
    across = min(ACROSS, len(plots))
    down = math.ceil(len(plots) / across)
    with matplotlib_defaults([*names, *(plot.title for plot in plots)]) as missing:
        figure = Figure(figsize=(PANEL[0] * across + 2, PANEL[1] * down), layout="constrained")
        panels = list(figure.subplots(down, across, squeeze=False).flat)
        handles: dict[str, Any] = {}
        for axes, plot in zip(panels, plots, strict=False):
            handles |= _draw(axes, plot, names)
        for axes in panels[len(plots) :]:
            axes.remove()
        shown = [name for name in names if name in handles]
        labels = [safe_text(name) + _seeds(name, plots) for name in shown]
        figure.legend(
            [handles[name] for name in shown], labels, loc="outside right upper", fontsize="small"
        )
        data = rendered(figure, format, ", ".join(plot.title for plot in plots))
    return Picture(data, tuple(missing))


def _draw(axes: "Axes", plot: Plot, names: Sequence[str]) -> dict[str, Any]:
    """One plot; gives a line of each series for the legend."""
    from matplotlib.ticker import EngFormatter

    handles = {}
    for one in plot.series:
        place = names.index(one.name)
        turn = place // COLOURS
        style: dict[str, Any] = {
            "color": f"C{place % COLOURS}", "linestyle": DASHES[turn % len(DASHES)],
            "linewidth": 1.4 if len(one.lines) == 1 else 0.9, "markersize": 5,
        }  # fmt: skip
        for line in one.lines:
            alone = len(line) == 1 or plot.logarithmic
            marker = MARKERS[turn % len(MARKERS)] if alone else ""
            xs, ys = zip(*line, strict=True)
            (handles[one.name],) = axes.plot(xs, ys, marker=marker, **style)
    if plot.from_zero:
        axes.set_xlim(left=0)
    if plot.logarithmic:
        at = sorted({x for one in plot.series for line in one.lines for x, _ in line})
        axes.set_xscale("log", base=2)
        axes.set_xticks(at, [logarithmic_label(x) for x in at], rotation=45)
        axes.minorticks_off()
    for axis, most in ((axes.xaxis, axes.get_xlim()[1]), (axes.yaxis, axes.get_ylim()[1])):
        if most >= LONG and axis.get_scale() == "linear":
            axis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(safe_text(plot.x))
    axes.set_ylabel(safe_text(plot.title))
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return handles


def _seeds(name: str, plots: Sequence[Plot]) -> str:
    """How many lines of one colour there are, where there are several."""
    most = max(len(one.lines) for plot in plots for one in plot.series if one.name == name)
    return f" ({most} seeds)" if most > 1 else ""
