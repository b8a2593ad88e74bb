"""Systems by tasks and costs: a heat map, a forest plot of differences with intervals, and their tables."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit.scoring.overview import Overview, OverviewCell, OverviewColumn
from attnkit.show import color
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


def overview_table(overview: Overview) -> Table:
    """Return a row for each system and a column for each task or cost."""
    columns = [
        Column("system", align="left"),
        *(Column(column.title, partial(_cell, column)) for column in overview.columns),
    ]
    units = (f"{column.title}: {column.unit}, to {column.baseline}" for column in overview.columns)
    notes = [
        f"differences to the baseline; the row of the baseline has its score; {UNDECIDED}: the 95 % "
        "interval covers 0; \u00b9: one seed; -: nothing to compare",
        *units,
        *_provisional(overview),
        *overview.notes,
    ]
    return Table.of("overview", overview.systems, columns, notes)


def forest_table(overview: Overview) -> Table:
    """Return the difference with its 95 % interval, a row for each task and system."""
    rows = [
        (column, name, column.cells[name])
        for column in overview.columns
        if column.score is not None
        for name in sorted(column.cells, key=lambda name: -(column.gain(name) or 0.0))
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
    return Table.of("differences", rows, fields, [*_provisional(overview), *overview.notes])


def _provisional(overview: Overview) -> list[str]:
    cells = (cell for column in overview.columns for cell in column.cells.values())
    return ["provisional if one of the two systems has one seed"] if any(cell.provisional for cell in cells) else []


def _cell(column: OverviewColumn, name: str) -> Cell:
    if name == column.baseline and column.score is not None:
        return Cell(f"{column.score:.2f}", {column.title: 0.0}, dim=True)
    if name not in column.cells:
        return Cell(NONE, {column.title: None})
    cell = column.cells[name]
    return Cell(_text(cell) + f" {UNDECIDED}" * cell.undecided, {column.title: cell.value})


def _text(cell: OverviewCell) -> str:
    """Return the difference with three digits, and a superscript 1 if it is provisional."""
    text = signed(cell.value) if abs(cell.value) < 10 else f"{cell.value:+.0f}"
    return text + "\u00b9" * cell.provisional


def overview_picture(overview: Overview, format: str) -> Picture:
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

    columns, names = overview.columns, overview.systems
    with matplotlib_defaults([*names, *(column.title for column in columns)]) as missing:
        matplotlib.rcParams.update({"hatch.linewidth": 0.6, "font.size": SMALL})
        size = (CELL[0] * len(columns) + 3, CELL[1] * len(names) + 2.4)
        figure = Figure(size, layout="constrained")
        axes = figure.add_subplot()
        palette = ListedColormap(color.table("diverging")[::-1] / 255)
        gains = np.array([[column.gain(name) for column in columns] for name in names], np.float64)
        image = axes.imshow(np.ma.masked_invalid(gains), cmap=palette, vmin=-1, vmax=1, aspect="auto")
        for row, at in np.ndindex(gains.shape):
            text, style = _number(columns[at], names[row], float(gains[row, at]))
            axes.text(at, row, text, ha="center", va="center", **style)
            if names[row] in columns[at].cells and columns[at].cells[names[row]].undecided:
                axes.add_patch(
                    Rectangle((at - 0.5, row - 0.5), 1, 1, fill=False, hatch=HATCH, edgecolor="0.72", linewidth=0)
                )
        axes.xaxis.tick_top()
        slant: dict[str, Any] = {"rotation": 35, "rotation_mode": "anchor"}
        titles = [safe_text(column.title) for column in columns]
        axes.set_xticks(range(len(columns)), titles, ha="left", fontsize=TYPE, **slant)
        axes.set_yticks(range(len(names)), map(safe_text, names), fontsize=TYPE)
        below = axes.secondary_xaxis("bottom")
        units = [f"{safe_text(column.unit)}\nto {safe_text(column.baseline)}" for column in columns]
        below.set_xticks(range(len(columns)), units, ha="right", va="top", **slant)
        for axis in (axes, below):
            axis.tick_params(length=0)
            for side in axis.spines.values():
                side.set_linewidth(0.4)
        bar = figure.colorbar(image, ax=axes, aspect=15, shrink=0.5, anchor=(0, 1))
        bar.set_ticks([-1, 0, 1], labels=["worse", "baseline", "better"])
        legend = "number: difference, or score of the baseline; hatched: 95 % interval covers 0\n"
        legend += "blank: nothing to compare; color: share of the column's largest difference"
        legend += "; \u00b9 one seed: provisional" * bool(_provisional(overview))
        figure.supxlabel(legend, x=0, ha="left", fontsize=SMALL, color="0.35")
        data = rendered(figure, format, "overview: differences to the baseline")
    return Picture(data, (*missing, *overview.notes))


def _number(column: OverviewColumn, name: str, gain: float) -> tuple[str, dict[str, Any]]:
    """Return the text of a cell, and its style."""
    if name == column.baseline and column.score is not None:
        return f"{column.score:.1f}", {"style": "italic", "color": "0.25"}
    if name not in column.cells:
        return "", {}
    text = _text(column.cells[name]).replace("-", "\u2212")
    return text, {"color": "white" if abs(gain) > 0.75 else "black"}


def forest_picture(overview: Overview, format: str) -> Picture:
    """Draw a forest plot: differences with their 95 % intervals, a panel for each task, the best systems at the top.

    The numbers of seeds of system and baseline are shown; the band is the margin of equivalence.

    Raises:
        UsageError: If the format is not png, svg or pdf.
        UnavailableError: If matplotlib is not installed.
    """
    require(format)
    from matplotlib.figure import Figure

    panels = [column for column in overview.columns if column.score is not None]
    row_counts = [len(column.cells) for column in panels]
    with matplotlib_defaults([*overview.systems, *(column.title for column in panels)]) as missing:
        figure = Figure((5.6, sum(row_counts) * ROW + 0.9 * len(panels) + 0.2), layout="constrained")
        grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=[n + 3 for n in row_counts])
        for axes, column in zip(grid.flat, panels, strict=True):
            _forest(axes, column)
        legend = "line: 95 % interval; open circle: it covers 0"
        figure.supxlabel(legend, x=0, ha="left", fontsize=SMALL, color="0.35")
        data = rendered(figure, format, "differences with 95 % intervals")
    return Picture(data, (*missing, *overview.notes))


def _forest(axes: "Axes", column: OverviewColumn) -> None:
    better = -1 if column.better == "lower" else 1
    order = sorted(column.cells, key=lambda name: better * column.cells[name].value)
    if column.margin is not None:
        axes.axvspan(-column.margin, column.margin, color="0.9", zorder=0)
    axes.axvline(0, color="0.3", linewidth=0.7, zorder=1)
    for row, name in enumerate(order):
        cell = column.cells[name]
        style: dict[str, Any] = {"color": "black", "markersize": 3.5, "linewidth": 1.0}
        if cell.low is not None and cell.high is not None:
            axes.plot([cell.low, cell.high], [row, row], **style)
        fill = "white" if cell.undecided else "black"
        axes.plot(cell.value, row, marker="o", markerfacecolor=fill, **style)
    seeds = {name: column.cells[name].seeds for name in order}
    seeds_differ = len({*seeds.values()}) > 1
    names = [safe_text(name) + (f" ({_seeds(seeds[name])})" if seeds_differ else "") for name in order]
    axes.set_yticks(range(len(order)), names, fontsize=TYPE)
    axes.set_ylim(-0.7, len(order) - 0.3)
    axes.tick_params(length=2, labelsize=TYPE)
    seeds_text = f"; seeds {_seeds(seeds[order[0]])}" if not seeds_differ else "; seeds in parentheses"
    axes.set_title(f"{safe_text(column.title)}{seeds_text}", fontsize=TYPE, loc="left")
    label = f"difference in {safe_text(column.unit)} to {safe_text(column.baseline)} ({column.score:.2f})"
    band = "" if column.margin is None else f"; band: within {column.margin:g}"
    direction = "; lower is better" if better < 0 else ""
    axes.set_xlabel(f"{label}{direction}{band}", fontsize=SMALL)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _seeds(seeds: tuple[int, int] | None) -> str:
    """Return the number of seeds of the system, and of the baseline if it differs."""
    if seeds is None:
        return "?"
    return str(seeds[0]) if seeds[0] == seeds[1] else f"{seeds[0]} vs {seeds[1]}"
