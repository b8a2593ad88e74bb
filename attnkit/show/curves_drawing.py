"""Curves as SVG that needs no matplotlib: one plot with its legend, as wide as a phone allows."""

from collections.abc import Iterator, Sequence

from attnkit.runs.curves import Plot, Point
from attnkit.show.curves_chart import LETTERS, MARGIN, horizontal, last_values, number, scale
from attnkit.show.svg import Drawing, text, width_of

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd",
           "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")  # fmt: skip
"""matplotlib's own cycle, as `attnkit plot` has it; then the dashes change."""
DASHES = ("", "6 3", "2 3", "8 3 2 3")
WIDTH, HEIGHT = 340.0, 200.0
"""Pixels of a drawing across, and of the plot inside it down."""
SMALL, LINE = 11.0, 17.0  # font size, and height of a line of text
APART = 9.0  # pixels between the letters of two lines that end at one place


def drawing(plot: Plot, names: Sequence[str]) -> Drawing:
    """One plot.

    Args:
        plot: what is drawn.
        names: all series of the figure in the order of their colours and letters.
    """
    return _Curves(plot, names).draw()


class _Curves:
    """One plot and its axes."""

    def __init__(self, plot: Plot, names: Sequence[str]) -> None:
        self.plot = plot
        self.series = [(names.index(one.name), one) for one in plot.series]
        points = [point for one in plot.series for line in one.lines for point in line]
        single = all(len(line) == 1 for one in plot.series for line in one.lines)
        self.y = scale([y for _, y in points], 6, pad=MARGIN if single else 0.02)
        self.x = horizontal(plot, [x for x, _ in points], 4, MARGIN)
        labels = [number(tick, self.y) for tick in self.y.ticks]
        self.left, self.right = width_of(labels, SMALL) + 8, WIDTH - 14
        self.top, self.bottom = LINE + 8, LINE + HEIGHT

    def draw(self) -> Drawing:
        legend, height = self._legend(self.bottom + 3 * LINE + 4)
        title = text(self.plot.title, 0, 13, size=13, more=' font-weight="600"')
        elements = [title, *self._axes(), *self._lines(), *self._ends(), *legend]
        return Drawing(WIDTH, height, self.plot.title, tuple(elements))

    def _at(self, point: Point) -> Point:
        """Where a point is in the drawing."""
        return (
            self.left + self.x.share(point[0]) * (self.right - self.left),
            self.bottom + self.y.share(point[1]) * (self.top - self.bottom),
        )

    def _axes(self) -> Iterator[str]:
        for tick in self.y.ticks:
            _, y = self._at((self.x.low, tick))
            yield (
                f'<path d="M{self.left:.1f} {y:.1f}H{self.right:.1f}" stroke="currentColor" '
                'stroke-opacity=".15"/>'
            )
            yield text(number(tick, self.y), self.left - 6, y + 4, anchor="end")
        for tick in self.x.ticks:
            x, _ = self._at((tick, self.y.low))
            yield f'<path d="M{x:.1f} {self.bottom:.1f}v4" stroke="currentColor"/>'
            yield text(number(tick, self.x), x, self.bottom + LINE, anchor="middle")
        yield text(self.plot.x, self.right, self.bottom + 2 * LINE - 3, anchor="end")
        yield (
            f'<path d="M{self.left:.1f} {self.top:.1f}V{self.bottom:.1f}H{self.right:.1f}" '
            'fill="none" stroke="currentColor"/>'
        )

    def _lines(self) -> Iterator[str]:
        for place, one in self.series:
            width = 1.6 if len(one.lines) == 1 else 1.1
            for line in one.lines:
                if len(line) > 1:
                    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in thinned(map(self._at, line)))
                    yield (
                        f'<polyline points="{points}" fill="none" stroke-width="{width}" '
                        f"{_stroke(place)}/>"
                    )

    def _ends(self) -> Iterator[str]:
        """A letter at the end of each line, above those that end there too."""
        ends = [
            (*self._at(line[-1]), place, len(line) == 1)
            for place, one in self.series for line in one.lines
        ]  # fmt: skip
        ends.sort(key=lambda end: (end[0], -end[1]))  # letters are moved up: the lowest first
        taken: list[tuple[Point, float, int]] = []  # the end, where its letter is, whose it is
        for x, y, place, alone in ends:
            if alone:
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{_colour(place)}"/>'
            near = [one for one in taken if abs(x - one[0][0]) < APART]
            if any(abs(y - end) < APART and other == place for (_, end), _, other in near):
                continue  # of another seed
            at = y + 4
            while any(abs(at - other) < APART for _, other, _ in near):
                at -= 1
            if at < self.top:
                continue  # no room: the legend has its colour
            taken.append(((x, y), at, place))
            letter = LETTERS[place % len(LETTERS)]
            yield text(letter, x + 5, at, more=f' stroke="{_colour(place)}" stroke-width=".4"')

    def _legend(self, top: float) -> tuple[list[str], float]:
        """Letter, name and last values of each series below the plot, and where that ends."""
        elements, x, y = [], 0.0, top
        for place, one in self.series:
            entry = f"{LETTERS[place % len(LETTERS)]} {one.name} {last_values(one)}"
            needed = 30 + width_of([entry], SMALL)
            if x and x + needed > WIDTH:
                x, y = 0.0, y + LINE
            elements.append(
                f'<path d="M{x:.1f} {y - 4:.1f}h18" stroke-width="2" {_stroke(place)}/>'
            )
            elements.append(text(entry, x + 22, y))
            x += needed
        return elements, y + 8


def thinned(points: Iterator[Point]) -> Iterator[Point]:
    """The points that a line of pixels can show: of each column the first, extremes and last."""
    column: list[Point] = []
    for point in points:
        if column and int(point[0]) != int(column[0][0]):
            yield from _extremes(column)
            column = []
        column.append(point)
    yield from _extremes(column)


def _extremes(column: Sequence[Point]) -> Iterator[Point]:
    values = [y for _, y in column]
    kept = {0, values.index(min(values)), values.index(max(values)), len(values) - 1}
    yield from (column[place] for place in sorted(kept))


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _stroke(place: int) -> str:
    """Colour and dashes of a line."""
    dashes = DASHES[place // len(COLOURS) % len(DASHES)]
    return f'stroke="{_colour(place)}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
