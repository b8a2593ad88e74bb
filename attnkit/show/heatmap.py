"""An attention map on a terminal of any width, in colors or shades."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment, Segments
from rich.text import Text

from attnkit.show.attention_matrix import AttentionMatrix
from attnkit.show.color import Array, Scale, pooled, scaled
from attnkit.show.terminal_colors import TerminalColors, color_system
from attnkit.show.token_labels import aligned, cut, labels_of, upright
from attnkit.text import one_line

MAX_LINES = 64
MAX_LISTED_KEYS = 100
MAX_LABEL_HEIGHT = 12  # maximum height of a column's label, in lines


def text(content: str, style: str = "") -> Text:
    """Return sanitized text on one line, in which long words are folded."""
    return Text(one_line(content), style=style, overflow="fold")


@dataclass(frozen=True, eq=False)
class Heatmap:
    """A rich renderable of one matrix [queries, keys]: title, labels, cells, color bar, notes.

    Each query is a row and each key a column, two characters wide if there is room. Wider and longer maps are pooled;
    with colors, a long map has two rows per line, in half blocks. The console determines whether 24-bit colors, 256
    colors or shades are used.
    """

    matrix: AttentionMatrix
    scale: Scale = "linear"  # for weights; differences are always linear
    bounds: tuple[float, float] | None = None  # range of the color bar; None: range of this map

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        matrix = self.matrix
        if matrix.title:
            yield text(matrix.title, "bold")
        if not matrix.weights.size:
            yield text("nothing to show: an axis has no tokens")
        else:
            shares = scaled(matrix.weights, self.scale, signed=matrix.signed, bounds=self.bounds)
            colors = TerminalColors(color_system(console), shares.palette)
            caption = [
                colors.caption(shares, difference=matrix.signed),
                f"rows: {matrix.axes[0]}, columns: {matrix.axes[1]}",
            ]
            yield Segments(self._lines(shares.values, colors, options.max_width, caption))
            yield Segments(colors.bar(shares, options.max_width))
            yield text("; ".join((*caption, *shares.notes)), "dim")
        for note in matrix.notes:
            yield text(note, "dim")

    def _lines(self, values: Array, colors: TerminalColors, width: int, caption: list[str]) -> list[Segment]:
        """Return the labels of the columns and the rows; append to the caption how they were made to fit."""
        matrix = self.matrix
        names, keys = labels_of(matrix.queries), labels_of(matrix.keys)
        digits = len(str(len(names) - 1))
        max_label = max(1, width // 4 if width > 40 else width // 3)  # maximum width of a row's label
        label = min(max(map(cell_len, names)), max_label)
        numbered = 2 * len(keys) > width - label - 1
        if numbered:
            label = min(label + digits + 1, max_label)
        room = max(2, width - label - 1)
        cell = 2 if 2 * len(keys) <= room else 1
        half = len(names) > MAX_LINES and colors.half_blocks
        rows, columns = ceil(len(names) / (MAX_LINES * (1 + half))), ceil(len(keys) / room)
        if rows * columns > 1:
            caption.append(f"a cell is the {colors.pooled_value} of {rows} x {columns} (queries x keys)")
        if half or rows > 1:
            caption.append(f"a line is {rows * (1 + half)} queries, labeled by the first")
        if numbered:
            first = matrix.first_key
            heads = [ruler(range(first, first + len(keys), columns), cell)]
            if matrix.queries[first:] == matrix.keys or len(keys) > MAX_LISTED_KEYS:
                caption.append("tokens are numbered from 0")
            else:
                caption.append("keys: " + ", ".join(f"{at} {name}" for at, name in enumerate(keys, first)))
            names = [f"{at:>{digits}} {name}" for at, name in enumerate(names)]
        else:
            heads = upright([cut(key, MAX_LABEL_HEIGHT) for key in keys], cell)
        margin = " " * (label + 1)
        out = [segment for head in heads for segment in (Segment((margin + head).rstrip()), Segment.line())]
        drawn = pooled(values, rows, columns, colors.middle)
        for row in range(0, len(drawn), 1 + half):
            out.append(Segment(aligned(names[row * rows], label) + " "))
            out += [*colors.line(drawn, row, cell, half), Segment.line()]
        return out


def ruler(numbers: Sequence[int], cell: int) -> str:
    """Return a line that shows every tenth number, starting at its column, over columns `cell` characters wide."""
    out = ""
    for place in range(0, len(numbers), 10):
        if place * cell + len(str(numbers[place])) <= len(numbers) * cell:
            out = out.ljust(place * cell) + str(numbers[place])
    return out
