"""One attention map on a terminal of any width, in colours or shades."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment, Segments
from rich.text import Text

from attnkit.show.attention_matrix import AttentionMatrix
from attnkit.show.colour import Scale, Scaled, pooled, scaled
from attnkit.show.terminal_colours import DIM, TerminalColours, colour_system
from attnkit.show.token_labels import aligned, labels_of, upright
from attnkit.text import one_line

_MOST_LABELLED = 64  # rows that get a line and a label each
_MOST_LINES = 100  # lines that a longer map takes
_MOST_BLOCKS = 3
_HIGHEST_LABEL = 12  # characters of a column's label
_MOST_KEYS_LISTED = 100


@dataclass(frozen=True, eq=False)
class Heatmap:
    """A rich renderable of one matrix [T, S]: title, labels, cells, colour bar, notes.

    It is never wider than the screen and says what it did to fit.  Each query is a row with its
    label and each key a column, as squares of two cells where they fit; a wider map is up to three
    blocks of columns below each other, or pooled; long maps are drawn as half blocks, two rows a
    line.  The console decides between 24-bit colour, 256 colours and shades.
    """

    matrix: AttentionMatrix
    scale: Scale = "linear"
    bounds: tuple[float, float] | None = None  # of the colour bar; None: of this map alone

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        matrix, ascii_only = self.matrix, options.ascii_only
        if matrix.title:
            yield text(matrix.title, "bold", ascii_only)
        if not matrix.weights.size:
            yield text("nothing to show: no token is left on an axis", "", ascii_only)
        else:
            shares = scaled(matrix.weights, self.scale, signed=matrix.signed, bounds=self.bounds)
            colours = TerminalColours(colour_system(console), ascii_only, matrix.signed)
            drawing = _Drawing(matrix, shares, colours, options.max_width)
            yield Segments(drawing.lines())
            yield Segments(colours.bar(shares, options.max_width))
            caption = (colours.caption(shares), matrix.axes_text, *drawing.notes(), *shares.notes)
            yield text("; ".join(caption), "dim", ascii_only)
        for note in matrix.notes:
            yield text(note, "dim", ascii_only)


def text(content: str, style: str, ascii_only: bool) -> Text:
    """Text from anywhere, made harmless; long words are folded, never cut."""
    return Text(one_line(content, ascii_only), style=style, overflow="fold")


class Layout(NamedTuple):
    """How a map is laid out."""

    label: int  # cells of the row labels
    cell: int  # cells of a column
    rows: int = 1  # queries that a drawn row stands for
    columns: int = 1  # keys that a drawn column stands for
    half: bool = False  # two drawn rows a line
    block: int = 1  # drawn columns side by side


def layout(sizes: tuple[int, int], label: int, width: int, half_blocks: bool) -> Layout:
    """The first of these that fits: squares, narrow cells, blocks of columns, pooled cells.

    Args:
        sizes: queries and keys.
        label: cells that the row labels would like.
        width: cells of the screen.
        half_blocks: whether half blocks can be drawn.
    """
    queries, keys = sizes
    label = max(1, min(label, width // 4 if width > 40 else width // 3))
    room = max(2, width - label - 1)
    if queries <= _MOST_LABELLED:
        for cell in (2, 1):
            if keys * cell <= room:
                return Layout(label, cell, block=keys)
        blocks = {cell: ceil(keys / (room // cell)) for cell in (2, 1)}
        if blocks[1] <= _MOST_BLOCKS:
            cell = 2 if blocks[2] < _MOST_BLOCKS else 1
            return Layout(label, cell, block=ceil(keys / blocks[cell]))
    columns = ceil(keys / room)
    block = ceil(keys / columns)
    if queries <= _MOST_LABELLED:
        return Layout(label, 1, 1, columns, block=block)
    rows = max(columns, ceil(queries / (2 * _MOST_LINES)))
    # A character is about twice as high as it is wide.
    return Layout(label, 1, rows if half_blocks else 2 * rows, columns, half_blocks, block)


class _Drawing:
    """The lines of a map between its title and its colour bar."""

    def __init__(
        self, matrix: AttentionMatrix, shares: Scaled, colours: TerminalColours, width: int
    ) -> None:
        self.colours, self.width, self.signed = colours, width, shares.signed
        self.names = labels_of(matrix.queries, colours.ascii_only)
        self.keys = labels_of(matrix.keys, colours.ascii_only)
        self.first_key = matrix.first_key
        self.same = matrix.queries[self.first_key :] == matrix.keys
        widest = max(map(cell_len, self.names))
        sizes = len(self.names), len(self.keys)
        number = len(str(sizes[0] - 1)) + 1
        self.layout = layout(sizes, widest, width, colours.half_blocks)
        fits = upright(self.keys, 2, _HIGHEST_LABEL) is not None
        self.upright = self.layout.cell == 2 and fits
        if not self.upright:
            self.layout = layout(sizes, widest + number, width, colours.half_blocks)
        self.values = pooled(shares.values, self.layout.rows, self.layout.columns, shares.middle)

    def lines(self) -> Iterator[Segment]:
        """Blocks of columns below each other, each with its head; then what the numbers mean."""
        block = self.layout.block
        for first in range(0, self.values.shape[1], block):
            last = min(first + block, self.values.shape[1])
            if block < self.values.shape[1]:
                names = _keys_shown(first, last, len(self.keys), self.first_key)
                yield Segment(names[: self.width], DIM)
                yield Segment.line()
            cell, columns = self.layout.cell, self.layout.columns
            if self.upright:
                heads = upright(self.keys[first:last], cell, _HIGHEST_LABEL) or []
            else:
                places = [self.first_key + place * columns for place in range(first, last)]
                heads = ruler(places, cell)
            for head in heads:
                yield Segment((" " * (self.layout.label + 1) + head).rstrip())
                yield Segment.line()
            for row in range(0, len(self.values), 2 if self.layout.half else 1):
                yield Segment(self._label(row * self.layout.rows))
                yield from self.colours.line(
                    self.values[:, first:last], row, cell, self.layout.half
                )
                yield Segment.line()

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
            numbered = enumerate(self.keys, self.first_key)
            yield "keys: " + ", ".join(f"{at} {name}" for at, name in numbered)

    def _label(self, query: int) -> str:
        """The label column of a line, with the query's number where columns have numbers."""
        name, width = self.names[query], self.layout.label
        if self.upright:
            return aligned(name, width, self.colours.ascii_only) + " "
        number = len(str(len(self.names) - 1))
        if width < number + 2:
            return f"{query:>{width}}"[:width] + " "
        rest = aligned(name, width - number - 1, self.colours.ascii_only)
        return f"{query:>{number}} {rest} "


def _keys_shown(first: int, last: int, count: int, first_key: int) -> str:
    """Which keys a block of columns holds, by their numbers."""
    return f"keys {first + first_key} to {last - 1 + first_key} of {count + first_key}"


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
