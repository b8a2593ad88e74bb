"""Curves on a terminal, drawn as lines of letters in colors."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnkit.runs.curves import Curves, Series
from attnkit.text import one_line

COLORS = ("blue", "red", "green", "magenta", "cyan", "yellow")
"""Colors of the lines, used cyclically: six of the colors that every terminal has, in the shades of its theme."""
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
WIDEST, ROWS = 160, 14
MARGIN = 0.08
"""Space around single points, as a share of their range."""
BOX = "┤│└┬─"
"""Characters of the axes: a row with a label, a row without, the corner, a column with a label, a column without."""


class Scale(NamedTuple):
    """The range and ticks of an axis."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value, from 0 at the low end to 1 at the high end."""
        low, high = self.low, self.high
        if self.logarithmic:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return (value - low) / (high - low)

    def place(self, value: float, cells: int) -> int:
        """Return the index of a value's cell, counted from the low end."""
        return min(cells - 1, int(self.share(value) * cells))


class CurvesChart:
    """A rich renderable of plots, one below the other."""

    def __init__(self, plots: Sequence[Curves]) -> None:
        self.plots = plots

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = list(dict.fromkeys(series.name for plot in self.plots for series in plot.series))
        for number, plot in enumerate(self.plots):
            if number:
                yield ""
            yield from _chart(plot, names, min(WIDEST, options.max_width))


def _chart(plot: Curves, names: Sequence[str], width: int) -> Iterator[Text]:
    """Yield the title, rows, axis and legend of a plot."""

    def line(text: str, style: str = "") -> Text:
        """Return sanitized text, cut to the width of the chart."""
        content = Text(one_line(text), style, no_wrap=True)
        content.truncate(width, overflow="ellipsis")
        return content

    yield line(plot.title, "bold")
    lines = [points for series in plot.series for points in series.lines]
    pad = MARGIN if all(len(points) == 1 for points in lines) else 0.0
    y = scale([point[1] for points in lines for point in points], ROWS // 3, pad=pad)
    labels = {y.place(tick, ROWS): number(tick) for tick in y.ticks}
    if max(map(len, labels.values())) > width // 3:
        labels = {}
    margin = max(map(len, labels.values()), default=0) + 1
    columns = width - margin
    x = horizontal(plot, [point[0] for points in lines for point in points], columns // 12, pad)
    cells: dict[tuple[int, int], int] = {}
    ends: dict[tuple[int, int], int] = {}
    for series in plot.series:
        index, line_ends = names.index(series.name), dict[tuple[int, int], None]()
        for points in series.lines:
            *line_cells, end = _traced([(x.place(a, columns), y.place(b, ROWS)) for a, b in points])
            line_ends[end] = None
            for at in line_cells:
                if at not in cells or sum(at) % 2:  # lines alternate in shared cells
                    cells[at] = index
        for end in line_ends:  # lines of a series that end in one cell share a letter; other series move beside it
            free = [c for c in range(columns) if (c, end[1]) not in ends] or [end[0]]
            ends[min((abs(c - end[0]), c) for c in free)[1], end[1]] = index
    cells |= ends
    for row in reversed(range(ROWS)):
        out = Text(labels.get(row, "").rjust(margin - 1) + BOX[row not in labels])
        for column in range(columns):
            series_index = cells.get((column, row))
            if series_index is None:
                out.append(" ")
            else:
                out.append(LETTERS[series_index % len(LETTERS)], COLORS[series_index % len(COLORS)])
        yield out
    yield from _axis(x, margin, columns)
    title = line(plot.x, "dim")
    title.pad_left(width - title.cell_len)
    yield title
    for series in plot.series:
        index = names.index(series.name)
        letter, color = LETTERS[index % len(LETTERS)], COLORS[index % len(COLORS)]
        yield line(f"{letter} {one_line(series.name)} {last_values(series)}", color)


def _traced(cells: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the cells of a line from its first to its last point."""
    for (x, y), (to_x, to_y) in pairwise(cells):
        count = max(abs(to_x - x), abs(to_y - y))
        for step in range(count):
            yield x + round((to_x - x) * step / count), y + round((to_y - y) * step / count)
    yield cells[-1]


def _axis(x: Scale, margin: int, columns: int) -> Iterator[Text]:
    """Yield the horizontal axis and its labels, without labels that would touch others."""
    line, labels, end = [BOX[4]] * columns, [" "] * (margin + columns), 0
    for tick in x.ticks:
        column, text = x.place(tick, columns), number(tick)
        start = max(0, margin + column - len(text) // 2)
        start = min(start, len(labels) - len(text))
        if (end and start <= end) or len(text) > len(labels):
            continue
        line[column] = BOX[3]
        end = start + len(text)
        labels[start:end] = text
    yield Text(" " * (margin - 1) + BOX[2] + "".join(line))
    yield Text("".join(labels).rstrip())


def last_values(series: Series) -> str:
    """Return the mean of the last values of a series' lines, and the number of lines if there are several."""
    values = [line[-1][1] for line in series.lines]
    mean = sum(values) / len(values)
    text = f"{mean:,.0f}" if abs(mean) >= 1000 else f"{mean:.3g}"
    return text if len(values) == 1 else f"{text} (mean of {len(values)} seeds)"


def scale(values: Sequence[float], max_ticks: int, *, pad: float = 0.0) -> Scale:
    """Return an axis over all values with about `max_ticks` ticks at round numbers.

    `pad` is the share of the range that is added at each end.
    """
    low, high = min(values), max(values)
    largest, smallest = max(abs(high), abs(low)), 1e-290  # about where powers of 10 lose digits
    if high - low <= max(largest * 1e-9, smallest):
        room = largest / 20 if largest > smallest else 1.0
    else:
        room = (high - low) * pad
    low, high = low - room, high + room
    rough = (high - low) / max(2, max_ticks)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Scale(low, high, tuple(at * step for at in range(first, last + 1)))


def horizontal(plot: Curves, values: Sequence[float], max_ticks: int, pad: float) -> Scale:
    """Return the horizontal axis of a plot; ticks of a logarithmic axis are some of the values."""
    if plot.log_x and min(values) < max(values):
        at = sorted(set(values))
        return Scale(at[0], at[-1], tuple(at[:: -(-len(at) // max(2, max_ticks))]), logarithmic=True)
    if plot.from_zero:
        return scale([0.0, *values], max_ticks)
    return scale(values, max_ticks, pad=pad)


def number(value: float) -> str:
    """Return a number as a short label: 0.25, 1500, 20k, 4e20."""
    for minimum, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if minimum <= abs(value) < 1e12:
            return f"{value / size:.6g}{unit}"
    return f"{value:.6g}".replace("e+", "e").replace("e-0", "e-")
