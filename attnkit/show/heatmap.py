"""One attention map on a terminal of any width, in colours, shades or digits."""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from attnkit.show.colour import Palette
from attnkit.show.colour_bar import bar, caption
from attnkit.show.colour_scale import Scale, Scaled, pooled, scaled
from attnkit.show.digits import digits
from attnkit.show.map_view import View
from attnkit.show.terminal_paint import Paint
from attnkit.show.token_labels import aligned, labels_of, upright
from attnkit.text import safe_text

Wide = Literal["auto", "pool", "page"]
"""What happens to a map wider than the screen: cells stand for several weights (pool), or blocks
of columns go below each other (page); auto: up to three blocks, else pooled."""
WIDES: tuple[Wide, ...] = ("auto", "pool", "page")

_MOST_LABELLED = 64  # rows that get a line and a label each
_MOST_LINES = 100  # lines that a longer map takes
_MOST_BLOCKS = 3
_HIGHEST_LABEL = 12  # characters of a column's label
_MOST_KEYS_LISTED = 100
_DIM = Style(dim=True)


class Heatmap:
    """A rich renderable of one matrix [T, S]: title, labels, cells, colour bar, notes.

    It is never wider than the screen and says what it did to fit.  Each query is a row with its
    label and each key a column, as squares of two cells where they fit; long maps are drawn as
    half blocks, two rows a line.  The console decides between 24-bit colour, 256 colours and
    shades; `plain` shows hundredths as digits on any console.
    """

    def __init__(
        self,
        view: View,
        *,
        scale: Scale = "linear",
        palette: Palette = "cividis",
        wide: Wide = "auto",
        bounds: tuple[float, float] | None = None,
        plain: bool = False,
    ) -> None:
        """
        Args:
            view: what is drawn.
            scale: from weights to colours.
            palette: colours of weights; signed views are always drawn with the diverging ones.
            wide: what happens to a map wider than the screen.
            bounds: range of the colour bar, where several maps share one; default: of this map.
            plain: digits for screen readers and grep: all weights, no colours, no pooling.
        """
        self.view = view
        self.scale = scale
        self.palette: Palette = "difference" if view.signed else palette
        self.wide = wide
        self.bounds = bounds
        self.plain = plain

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        view = self.view
        ascii_only = options.ascii_only
        if view.title:
            yield text(view.title, "" if self.plain else "bold", ascii_only)
        if not view.matrix.size:
            yield text("nothing to show: no token is left on an axis", "", ascii_only)
        elif self.plain:
            yield from digits(view, options.max_width, ascii_only)
        else:
            shown = scaled(view.matrix, self.scale, signed=view.signed, bounds=self.bounds)
            paint = Paint.of(console, options, self.palette)
            drawing = _Drawing(view, shown, paint, options.max_width, self.wide)
            yield Segments(drawing.lines())
            yield Segments(bar(shown, paint, options.max_width))
            parts = (caption(shown, paint.coloured), axes(view), *drawing.notes(), *shown.notes)
            yield text("; ".join(parts), "dim", ascii_only)
        for note in view.notes:
            yield text(note, "" if self.plain else "dim", ascii_only)


def text(content: str, style: str, ascii_only: bool) -> Text:
    """Text from anywhere, made harmless; long words are folded, never cut."""
    line = " ".join(safe_text(content).split())
    if ascii_only:
        line = line.encode("ascii", "backslashreplace").decode("ascii")
    return Text(line, style=style, overflow="fold")


def axes(view: View) -> str:
    """What rows and columns are."""
    return f"rows: {view.axes[0]}, columns: {view.axes[1]}"


class Layout(NamedTuple):
    """How a map is laid out."""

    label: int
    """Cells of the row labels."""
    cell: int
    """Cells of a column."""
    rows: int = 1
    """Queries that a drawn row stands for."""
    columns: int = 1
    """Keys that a drawn column stands for."""
    half: bool = False
    """Two drawn rows a line."""
    block: int = 1
    """Drawn columns side by side."""


def layout(sizes: tuple[int, int], label: int, width: int, halves: bool, wide: Wide) -> Layout:
    """The first of these that fits: squares, narrow cells, blocks of columns, pooled cells.

    Args:
        sizes: queries and keys.
        label: cells that the row labels would like.
        width: cells of the screen.
        halves: whether half blocks can be drawn.
        wide: as in `Heatmap`.
    """
    queries, keys = sizes
    label = max(1, min(label, width // 4 if width > 40 else width // 3))
    room = max(2, width - label - 1)
    if queries <= _MOST_LABELLED or wide == "page":
        for cell in (2, 1):
            if keys * cell <= room:
                return Layout(label, cell, block=keys)
        blocks = {cell: ceil(keys / (room // cell)) for cell in (2, 1)}
        if wide == "page" or (wide == "auto" and blocks[1] <= _MOST_BLOCKS):
            cell = 2 if blocks[2] < _MOST_BLOCKS else 1
            return Layout(label, cell, block=ceil(keys / blocks[cell]))
    columns = ceil(keys / room)
    block = ceil(keys / columns)
    if queries <= _MOST_LABELLED:
        return Layout(label, 1, 1, columns, block=block)
    rows = max(columns, ceil(queries / (2 * _MOST_LINES)))
    if halves:
        return Layout(label, 1, rows, columns, True, block)
    # A character is about twice as high as it is wide.
    return Layout(label, 1, 2 * rows, columns, block=block)


class _Drawing:
    """The lines of a map between its title and its colour bar."""

    def __init__(self, view: View, shown: Scaled, paint: Paint, width: int, wide: Wide) -> None:
        self.paint = paint
        self.width = width
        self.names = labels_of(view.queries, paint.ascii_only)
        self.keys = labels_of(view.keys, paint.ascii_only)
        self.same = view.queries == view.keys
        widest = max(map(cell_len, self.names))
        sizes = len(self.names), len(self.keys)
        digits = len(str(sizes[0] - 1)) + 1
        first = layout(sizes, widest, width, paint.halves, wide)
        self.upright = first.cell == 2 and upright(self.keys, 2, _HIGHEST_LABEL) is not None
        if self.upright:
            self.layout = first
        else:
            self.layout = layout(sizes, widest + digits, width, paint.halves, wide)
        self.values = pooled(shown.values, self.layout.rows, self.layout.columns, shown.middle)
        self.signed = shown.signed

    def lines(self) -> Iterator[Segment]:
        """Blocks of columns below each other, each with its head; then what the numbers mean."""
        block = self.layout.block
        for first in range(0, self.values.shape[1], block):
            last = min(first + block, self.values.shape[1])
            if block < self.values.shape[1]:
                yield Segment(f"keys {first} to {last - 1} of {len(self.keys)}"[: self.width], _DIM)
                yield Segment.line()
            yield from self._head(first, last)
            yield from self._rows(first, last)

    def notes(self) -> Iterator[str]:
        """What was done so that the map fits, and what the numbers at its sides are."""
        shape = self.layout
        if shape.rows * shape.columns > 1:
            which = "difference farthest from 0" if self.signed else "highest"
            yield f"a cell is the {which} of {shape.rows} x {shape.columns} (queries x keys)"
        if shape.half or shape.rows > 1:
            yield f"a line is {shape.rows * (1 + shape.half)} queries, named by the first"
        if self.upright:
            return
        if self.same or len(self.keys) > _MOST_KEYS_LISTED:
            yield "tokens are numbered from 0"
        else:
            yield "keys: " + ", ".join(f"{at} {name}" for at, name in enumerate(self.keys))

    def _head(self, first: int, last: int) -> Iterator[Segment]:
        """The columns' labels, or their numbers."""
        cell, columns = self.layout.cell, self.layout.columns
        margin = " " * (self.layout.label + 1)
        if self.upright:
            lines = upright(self.keys[first:last], cell, _HIGHEST_LABEL) or []
        else:
            lines = ruler([place * columns for place in range(first, last)], cell)
        for line in lines:
            yield Segment((margin + line).rstrip())
            yield Segment.line()

    def _rows(self, first: int, last: int) -> Iterator[Segment]:
        """Label and cells of each line."""
        shape = self.layout
        step = 2 if shape.half else 1
        for row in range(0, len(self.values), step):
            yield Segment(self._label(row * shape.rows))
            upper = self.values[row, first:last]
            if shape.half:
                below = row + 1 < len(self.values)
                lower = self.values[row + 1, first:last] if below else None
                yield from self.paint.half_cells(upper, lower, shape.cell)
            else:
                yield from self.paint.cells(upper, shape.cell)
            yield Segment.line()

    def _label(self, query: int) -> str:
        """The label column of a line, with the query's number where columns have numbers."""
        name, width = self.names[query], self.layout.label
        if self.upright:
            return aligned(name, width, self.paint.ascii_only) + " "
        digits = len(str(len(self.names) - 1))
        if width < digits + 2:
            return f"{query:>{width}}"[:width] + " "
        rest = aligned(name, width - digits - 1, self.paint.ascii_only)
        return f"{query:>{digits}} {rest} "


def ruler(numbers: Sequence[int], cell: int) -> list[str]:
    """Numbers over columns of `cell` cells.

    Each column of consecutive numbers below 100 gets its last digit, the tens stand above; else
    every tenth column is named, its number beginning there.
    """
    dense = len(numbers) <= _MOST_LABELLED and numbers[-1] < min(100, numbers[0] + len(numbers))
    above = below = ""
    for place, number in enumerate(numbers):
        if dense:
            below += str(number % 10).ljust(cell)
            if number % 10 == 0 and number:
                above = above.ljust(place * cell) + str(number // 10)
        elif place % 10 == 0 and place * cell + len(str(number)) <= len(numbers) * cell:
            below = below.ljust(place * cell) + str(number)
    return [above, below] if above else [below]
