"""Systems by tasks and costs: a heat map, a forest plot of differences with intervals, and their tables."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit.scoring.overview import Overview, OverviewCell, OverviewColumn
from attnkit.show import colour
from attnkit.show.differences import signed
from attnkit.show.figure import Picture, matplotlib_defaults, rendered, require
from attnkit.show.table import NONE, Cell, Column, Table
from attnkit.text import safe_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNDECIDED = "~"
"""Mark, in tables, of a difference whose interval covers 0."""
TYPE, SMALL = 8.0, 6.5  # points
CELL = (0.62, 0.24)  # inches
ROW = 0.21  # height of a line of a forest plot, in inches
HATCH = "////"


def overview_table(found: Overview) -> Table:
    """Return a row for each system and a column for each task or cost."""
    columns = [Column("system", align="left"), *(Column(one.title, partial(_cell, one)) for one in found.columns)]
    units = (f"{one.title}: {one.unit}, to {one.baseline}" for one in found.columns)
    notes = [
        f"differences to the baseline, whose own score stands in its row; {UNDECIDED}: the 95 % "
        "interval covers 0; \u00b9: one seed; -: nothing to compare",
        *units,
        *_provisional(found),
        *found.notes,
    ]
    return Table.of("overview", found.systems, columns, notes)


def forest_table(found: Overview) -> Table:
    """Return the difference with its 95 % interval, a row for each task and system."""
    rows = [
        (one, name, one.cells[name])
        for one in found.columns
        if one.score is not None
        for name in sorted(one.cells, key=lambda name: -(one.gain(name) or 0.0))
    ]

    def interval(row: tuple[OverviewColumn, str, OverviewCell]) -> str | None:
        low, high = row[2].low, row[2].high
        return None if low is None or high is None else f"{signed(low)} to {signed(high)}"

    fields = (
        Column("task", lambda row: row[0].title, align="left", key=True),
        Column("system", lambda row: row[1], align="left", key=True),
        Column("difference", lambda row: row[2].value, signed),
        Column("interval", interval),
        Column("of", lambda row: row[0].unit, align="left", priority=2),
        Column("baseline", lambda row: row[0].baseline, align="left", priority=1),
        Column("seeds", lambda row: _seeds(row[2].seeds), priority=1),
    )
    return Table.of("differences", rows, fields, [*_provisional(found), *found.notes])


def _provisional(found: Overview) -> list[str]:
    some = [one for column in found.columns for one in column.cells.values() if one.provisional]
    return ["provisional where one of the two has one seed"] if some else []


def _cell(column: OverviewColumn, name: str) -> Cell:
    if name == column.baseline and column.score is not None:
        return Cell(f"{column.score:.2f}", {column.title: 0.0}, dim=True)
    if name not in column.cells:
        return Cell(NONE, {column.title: None})
    one = column.cells[name]
    return Cell(_text(one) + f" {UNDECIDED}" * one.undecided, {column.title: one.value})


def _text(one: OverviewCell) -> str:
    """Return the difference with three digits, and a superscript 1 if it is provisional."""
    text = signed(one.value) if abs(one.value) < 10 else f"{one.value:+.0f}"
    return text + "\u00b9" * one.provisional


def overview_picture(found: Overview, format: str) -> Picture:
    """Draw the heat map: blue is better than the baseline, orange worse; each column has its own scale.

    Raises:
        UsageError: If the format is not png, svg or pdf.
        UnavailableError: If matplotlib is not installed.
    """
    require(format)
    import matplotlib
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    columns, names = found.columns, found.systems
    with matplotlib_defaults([*names, *(one.title for one in columns)]) as missing:
        matplotlib.rcParams.update({"hatch.linewidth": 0.6, "font.size": SMALL})
        size = (CELL[0] * len(columns) + 3, CELL[1] * len(names) + 2.4)
        figure = Figure(size, layout="constrained")
        axes = figure.add_subplot()
        palette = ListedColormap(colour.table("diverging")[::-1] / 255)
        gains = np.array([[one.gain(name) for one in columns] for name in names], np.float64)
        drawn = axes.imshow(np.ma.masked_invalid(gains), cmap=palette, vmin=-1, vmax=1, aspect="auto")
        for row, at in np.ndindex(gains.shape):
            text, style = _number(columns[at], names[row], float(gains[row, at]))
            axes.text(at, row, text, ha="center", va="center", **style)
            if names[row] in columns[at].cells and columns[at].cells[names[row]].undecided:
                axes.add_patch(
                    Rectangle((at - 0.5, row - 0.5), 1, 1, fill=False, hatch=HATCH, edgecolor="0.72", linewidth=0)
                )
        axes.xaxis.tick_top()
        slanted: dict[str, Any] = {"rotation": 35, "rotation_mode": "anchor"}
        titles = [safe_text(one.title) for one in columns]
        axes.set_xticks(range(len(columns)), titles, ha="left", fontsize=TYPE, **slanted)
        axes.set_yticks(range(len(names)), map(safe_text, names), fontsize=TYPE)
        below = axes.secondary_xaxis("bottom")
        units = [f"{safe_text(one.unit)}\nto {safe_text(one.baseline)}" for one in columns]
        below.set_xticks(range(len(columns)), units, ha="right", va="top", **slanted)
        for one in (axes, below):
            one.tick_params(length=0)
            for side in one.spines.values():
                side.set_linewidth(0.4)
        bar = figure.colorbar(drawn, ax=axes, aspect=15, shrink=0.5, anchor=(0, 1))
        bar.set_ticks([-1, 0, 1], labels=["worse", "baseline", "better"])
        legend = "number: difference, or score of the baseline; hatched: 95 % interval covers 0\n"
        legend += "blank: nothing to compare; colour: share of the column's largest difference"
        legend += "; \u00b9 one seed: provisional" * bool(_provisional(found))
        figure.supxlabel(legend, x=0, ha="left", fontsize=SMALL, color="0.35")
        data = rendered(figure, format, "overview: differences to the baseline")
    return Picture(data, (*missing, *found.notes))


def _number(column: OverviewColumn, name: str, gain: float) -> tuple[str, dict[str, Any]]:
    """Return the text of a cell, and its style."""
    if name == column.baseline and column.score is not None:
        return f"{column.score:.1f}", {"style": "italic", "color": "0.25"}
    if name not in column.cells:
        return "", {}
    text = _text(column.cells[name]).replace("-", "\u2212")
    return text, {"color": "white" if abs(gain) > 0.75 else "black"}


def forest_picture(found: Overview, format: str) -> Picture:
    """Draw a forest plot: differences with their 95 % intervals, a panel for each task, the best systems at the top.

    The numbers of seeds of system and baseline are shown; the band is the margin of equivalence.

    Raises:
        UsageError: If the format is not png, svg or pdf.
        UnavailableError: If matplotlib is not installed.
    """
    require(format)
    from matplotlib.figure import Figure

    panels = [one for one in found.columns if one.score is not None]
    down = [len(one.cells) for one in panels]
    with matplotlib_defaults([*found.systems, *(one.title for one in panels)]) as missing:
        figure = Figure((5.6, sum(down) * ROW + 0.9 * len(panels) + 0.2), layout="constrained")
        drawn = figure.subplots(len(panels), 1, squeeze=False, height_ratios=[n + 3 for n in down])
        for axes, one in zip(drawn.flat, panels, strict=True):
            _forest(axes, one)
        legend = "line: 95 % interval; open circle: it covers 0"
        figure.supxlabel(legend, x=0, ha="left", fontsize=SMALL, color="0.35")
        data = rendered(figure, format, "differences with 95 % intervals")
    return Picture(data, (*missing, *found.notes))


def _forest(axes: "Axes", column: OverviewColumn) -> None:
    better = -1 if column.better == "lower" else 1
    order = sorted(column.cells, key=lambda name: better * column.cells[name].value)
    if column.margin is not None:
        axes.axvspan(-column.margin, column.margin, color="0.9", zorder=0)
    axes.axvline(0, color="0.3", linewidth=0.7, zorder=1)
    for row, name in enumerate(order):
        one = column.cells[name]
        style: dict[str, Any] = {"color": "black", "markersize": 3.5, "linewidth": 1.0}
        if one.low is not None and one.high is not None:
            axes.plot([one.low, one.high], [row, row], **style)
        filled = "white" if one.undecided else "black"
        axes.plot(one.value, row, marker="o", markerfacecolor=filled, **style)
    seeds = {name: column.cells[name].seeds for name in order}
    several = len({*seeds.values()}) > 1
    names = [safe_text(name) + (f" ({_seeds(seeds[name])})" if several else "") for name in order]
    axes.set_yticks(range(len(order)), names, fontsize=TYPE)
    axes.set_ylim(-0.7, len(order) - 0.3)
    axes.tick_params(length=2, labelsize=TYPE)
    alike = f"; seeds {_seeds(seeds[order[0]])}" if not several else "; seeds in parentheses"
    axes.set_title(f"{safe_text(column.title)}{alike}", fontsize=TYPE, loc="left")
    unit = safe_text(column.unit)
    what = f"difference in {unit} to {safe_text(column.baseline)} ({column.score:.2f})"
    band = "" if column.margin is None else f"; band: within {column.margin:g}"
    which = "; lower is better" if better < 0 else ""
    axes.set_xlabel(f"{what}{which}{band}", fontsize=SMALL)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _seeds(seeds: tuple[int, int] | None) -> str:
    """Return the number of seeds of the system, and of the baseline if it differs."""
    if seeds is None:
        return "?"
    return str(seeds[0]) if seeds[0] == seeds[1] else f"{seeds[0]} vs {seeds[1]}"
