"""Curves on a terminal: braille lines in colours, or letters where there are none."""

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from attnkit.runs.curves import Curves, Point, Series
from attnkit.text import one_line, short_number

COLOURS = ("blue", "red", "green", "magenta", "cyan", "yellow")
"""Of the lines, in turn: six of the colours that every terminal has, so its theme decides."""
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
GAP = 3  # columns between two charts
WIDEST = 160
SIDE_BY_SIDE = 120  # columns from which on two charts stand beside each other
LOWEST, HIGHEST = 10, 16
MARGIN = 0.08
"""Space around points that stand alone, as a share of their range."""
AROUND = 5  # lines of a chart besides its rows and all but the first line of its legend
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character by row and column of its dots."""
BRAILLE = 0x2800
BOX = {"tick": "┤", "line": "│", "corner": "└", "below": "┬", "flat": "─"}
ASCII = {"tick": "+", "line": "|", "corner": "+", "below": "+", "flat": "-"}


class Scale(NamedTuple):
    """An axis: its ends, and where it is labelled."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """How far a value is from the low end to the high end, from 0 to 1."""
        low, high = self.low, self.high
        if self.logarithmic:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return (value - low) / (high - low)

    def place(self, value: float, cells: int) -> int:
        """The cell of a value, the first being that of the low end."""
        return min(cells - 1, int(self.share(value) * cells))


class CurvesChart:
    """Plots one below the other, or side by side on a wide screen; a rich renderable."""

    def __init__(self, plots: Sequence[Curves]) -> None:
        self.plots = plots

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        across = 2 if options.max_width >= SIDE_BY_SIDE and len(self.plots) > 1 else 1
        width = min(WIDEST, (options.max_width - GAP * (across - 1)) // across)
        down = -(-len(self.plots) // across)
        height = console.size.height if console.is_terminal else HIGHEST * 10
        rows = max(LOWEST, min(HIGHEST, height // down - AROUND))
        names = list(dict.fromkeys(one.name for plot in self.plots for one in plot.series))
        charts = [_Chart(p, names, width, rows, console, options.ascii_only) for p in self.plots]
        for start in range(0, len(charts), across):
            if start:
                yield ""
            if across == 1:
                yield charts[start].draw()
                continue
            grid = Grid.grid(padding=(0, GAP, 0, 0), pad_edge=False)
            for _ in range(across):
                grid.add_column(width=width, no_wrap=True)
            grid.add_row(*(chart.draw() for chart in charts[start : start + across]))
            yield grid


class _Chart:
    """One plot in so many columns and rows."""

    def __init__(
        self,
        plot: Curves,
        names: Sequence[str],
        width: int,
        rows: int,
        console: Console,
        ascii_only: bool,
    ) -> None:
        self.series = [(names.index(one.name), one) for one in plot.series]
        self.plot, self.width, self.rows = plot, width, rows
        self.box = ASCII if ascii_only else BOX
        self.coloured = console.color_system is not None and not console.no_color
        few = len(names) <= (len(COLOURS) if self.coloured else 1)
        self.braille = few and not ascii_only
        points = [point for one in plot.series for line in one.lines for point in line]
        single = all(len(line) == 1 for one in plot.series for line in one.lines)
        pad = MARGIN if single else 0.0
        self.y = scale([y for _, y in points], max(2, rows // 3), pad=pad)
        self.labels = {self.y.place(t, rows): number(t, self.y) for t in self.y.ticks}
        if max(map(len, self.labels.values())) > width // 3:
            self.labels = {}
        self.margin = max(map(len, self.labels.values()), default=0) + 1
        self.columns = width - self.margin
        xs = [x for x, _ in points]
        self.x = horizontal(plot, xs, self.columns // 12, pad)

    def draw(self) -> Text:
        """Title, rows, axis and legend."""
        title = self._cut(Text(self._line(self.plot.title), style="bold"))
        return Text("\n").join([title, *self._rows(), *self._axis(), *self._legend()])

    def _line(self, text: str) -> str:
        """Text from anywhere on one line."""
        return one_line(text, ascii_only=self.box is ASCII)

    def _cut(self, text: Text) -> Text:
        """Text that is no wider than the chart."""
        text.truncate(self.width, overflow="crop" if self.box is ASCII else "ellipsis")
        return text

    def style(self, place: int) -> str:
        return COLOURS[place % len(COLOURS)] if self.coloured else ""

    def _rows(self) -> Iterator[Text]:
        cells = self._cells()
        for row in reversed(range(self.rows)):
            mark = "tick" if row in self.labels else "line"
            out = Text(self.labels.get(row, "").rjust(self.margin - 1) + self.box[mark])
            for column in range(self.columns):
                glyph, place = cells.get((column, row), (" ", 0))
                out.append(glyph, self.style(place) if glyph != " " else "")
            yield out

    def _cells(self) -> dict[tuple[int, int], tuple[str, int]]:
        """What stands in each cell: a character, and whose it is; rows count from below."""
        wide, high = (2, 4) if self.braille else (1, 1)
        dots: dict[tuple[int, int], dict[int, int]] = {}
        ends: list[tuple[tuple[int, int], int]] = []
        for place, one in self.series:
            for line in one.lines:
                for column, row in self._traced(line, wide, high):  # its end comes last
                    cell = dots.setdefault((column // wide, row // high), {})
                    bit = DOTS[3 - row % 4][column % 2] if self.braille else 1
                    cell[place] = cell.get(place, 0) | bit
                ends.append(((column // wide, row // high), place))
        cells = {at: self._glyph(at, whose) for at, whose in dots.items()}
        taken: set[tuple[int, int]] = set()
        for (column, row), place in ends:
            # two ends in one cell stand beside each other
            near = sorted(range(self.columns), key=lambda other: (abs(other - column), other))
            free = next((other for other in near if (other, row) not in taken), column)
            taken.add((free, row))
            cells[free, row] = LETTERS[place % len(LETTERS)], place
        return cells

    def _glyph(self, at: tuple[int, int], whose: dict[int, int]) -> tuple[str, int]:
        """The character of a cell; where lines meet without braille they take turns."""
        if self.braille:
            most = max(whose, key=lambda place: whose[place].bit_count())
            return chr(BRAILLE | reduce(or_, whose.values())), most
        places = sorted(whose)
        place = places[sum(at) % len(places)]
        return LETTERS[place % len(LETTERS)], place

    def _traced(self, line: Sequence[Point], wide: int, high: int) -> Iterator[tuple[int, int]]:
        """The dots of a line, from its first point to its last."""
        dots = [
            (self.x.place(x, self.columns * wide), self.y.place(y, self.rows * high))
            for x, y in line
        ]
        for (x, y), (to_x, to_y) in pairwise(dots):
            count = max(abs(to_x - x), abs(to_y - y))
            for at in range(count):
                yield x + round((to_x - x) * at / count), y + round((to_y - y) * at / count)
        yield dots[-1]

    def _axis(self) -> Iterator[Text]:
        """The horizontal axis, its labels, and its title."""
        line = [self.box["flat"]] * self.columns
        labels = [" "] * (self.margin + self.columns)
        end = 0
        for tick in self.x.ticks:
            column = self.x.place(tick, self.columns)
            text = number(tick, self.x)
            start = max(0, self.margin + column - len(text) // 2)
            start = min(start, len(labels) - len(text))
            if (end and start <= end) or len(text) > len(labels):
                continue
            line[column] = self.box["below"]
            end = start + len(text)
            labels[start:end] = text
        yield Text(" " * (self.margin - 1) + self.box["corner"] + "".join(line))
        yield Text("".join(labels).rstrip())
        title = self._cut(Text(self._line(self.plot.x), style="dim"))
        title.pad_left(self.width - title.cell_len)
        yield title

    def _legend(self) -> Iterator[Text]:
        """Letter, name and last values of each series, as many on a line as fit."""
        out = Text()
        for place, one in self.series:
            letter = LETTERS[place % len(LETTERS)]
            entry = Text(f"{letter} {self._line(one.name)} ", style=self.style(place))
            entry = self._cut(entry.append(last_values(one), "dim"))
            if out and cell_len(out.plain) + 3 + cell_len(entry.plain) > self.width:
                yield out
                out = Text()
            out = Text("   ").join([out, entry]) if out else entry
        yield out


def last_values(series: Series) -> str:
    """Where the lines of a series end: their mean, and how many they are."""
    values = [line[-1][1] for line in series.lines]
    mean = sum(values) / len(values)
    text = f"{mean:,.0f}" if abs(mean) >= 1000 else f"{mean:.3g}"
    return text if len(values) == 1 else f"{text} (mean of {len(values)} seeds)"


def scale(values: Sequence[float], most: int, *, pad: float = 0.0) -> Scale:
    """An axis over all values, with at most about so many labels at round numbers.

    `pad` is the share of the range that is added at each end.
    """
    low, high = min(values), max(values)
    largest, smallest = max(abs(high), abs(low)), 1e-290  # about where powers of 10 lose digits
    if high - low <= max(largest * 1e-9, smallest):
        room = largest / 20 if largest > smallest else 1.0
    else:
        room = (high - low) * pad
    low, high = low - room, high + room
    rough = (high - low) / max(2, most)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Scale(low, high, tuple(at * step for at in range(first, last + 1)))


def horizontal(plot: Curves, values: Sequence[float], most: int, pad: float) -> Scale:
    """The horizontal axis of a plot; a logarithmic one is labelled at some of the values."""
    if plot.log_x and min(values) < max(values):
        at = sorted(set(values))
        return Scale(at[0], at[-1], tuple(at[:: -(-len(at) // max(2, most))]), logarithmic=True)
    if plot.from_zero:
        return scale([0.0, *values], most)
    return scale(values, most, pad=pad)


def number(value: float, axis: Scale) -> str:
    """A label that is short and tells its neighbours apart."""
    if axis.logarithmic:
        return logarithmic_label(value)
    step = axis.ticks[1] - axis.ticks[0] if len(axis.ticks) > 1 else abs(value) or 1.0
    most = max(map(abs, axis.ticks))
    if not 1e-3 <= most < 1e12:
        return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace("e+", "e")
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if most >= limit:
            divisor = limit if unit != "k" else 1e3
            return "0" if value == 0 else f"{_decimals(value / divisor, step / divisor)}{unit}"
    return _decimals(value, step)


def logarithmic_label(value: float) -> str:
    """A label of a logarithmic axis, which stands at a value itself: 1,024 or 3e-3."""
    return f"{value:,.0f}" if value == round(value) else short_number(f"{value:.6g}")


def _decimals(value: float, step: float) -> str:
    """A number with the decimals of a step; 2.5 has one, 0.025 three."""
    digits = next((n for n in range(7) if abs(round(step, n) - step) < step * 1e-6), 7)
    return f"{value:.{digits}f}"
