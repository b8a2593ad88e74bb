"""A table on a terminal of any width: folded, thinned out, or one block a row."""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from attnkit.show.table import PLUS_MINUS, Cell, Table
from attnkit.text import safe_text


class Screen:
    """A rich renderable that is never wider than the screen and hides nothing in silence.

    It takes the first of these that fits: all columns side by side; differences below their
    scores; their p-values below them; the same without the columns of the highest priorities,
    which a note then names; one block of lines a row.
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        draw = _Draw(self.table, options.ascii_only)
        if self.table.title:
            yield draw.text(self.table.title, "bold")
        yield from self._body(draw, console, options)
        for note in self.table.notes:
            yield draw.text(note, "dim")

    def _body(
        self, draw: "_Draw", console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        columns = self.table.columns
        shown = range(len(columns))
        wide = options.update(width=10_000, min_width=0)
        for fold, level in self._attempts():
            kept = [i for i in shown if columns[i].priority < level or columns[i].under]
            grid = draw.grid(kept, fold)
            if Measurement.get(console, wide, grid).maximum <= options.max_width:
                yield grid
                if hidden := [columns[i].title for i in shown if i not in kept]:
                    yield draw.text(f"not shown at this width: {', '.join(hidden)}", "dim")
                return
        yield from draw.blocks()

    def _attempts(self) -> Iterator[tuple[int, int]]:
        """(lines that a score and its difference take, priority from which columns go)."""
        levels = sorted({column.priority for column in self.table.columns} - {0}, reverse=True)
        everything = levels[0] + 1 if levels else 1
        yield 1, everything
        for level in (everything, *levels):
            yield 2, level
            yield 3, level


class _Draw:
    """Parts of the picture; plain characters only where the terminal has no others."""

    def __init__(self, table: Table, ascii_only: bool) -> None:
        self.table = table
        self.plus_minus = "+-" if ascii_only else PLUS_MINUS

    def text(self, text: str, style: str = "") -> Text:
        """Text from anywhere, made harmless; long words are folded, never cut."""
        clean = " ".join(safe_text(text).split()).replace(PLUS_MINUS, self.plus_minus)
        return Text(clean, style=style, overflow="fold")

    def grid(self, kept: list[int], fold: int) -> Grid:
        """The columns side by side, a score and its difference on `fold` lines."""
        grid = Grid(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        heads = self._stacks(kept, fold)
        for head in heads:
            first = self.table.columns[head[0]]
            title = Text("\n").join(self.text(word, "bold") for word in first.title.split())
            grid.add_column(title, justify=first.align, no_wrap=True)
        for row in self.table.rows:
            grid.add_row(*(self._stack([row[i] for i in head], fold) for head in heads))
        return grid

    def _stack(self, cells: list[Cell], fold: int) -> Text:
        """A cell with those below it; what the baseline has no value for takes no line."""
        lines = [self.text(cells[0].text, "bold" if cells[0].best else "")]
        for cell in cells[1:]:
            if cell.text != "-":
                parts = cell.text.split(" ", 1) if fold > 2 else [cell.text]
                lines.extend(map(self.text, parts))
        return Text("\n").join(lines)

    def blocks(self) -> Iterator[RenderableType]:
        """Each row as a block: its name, then one line a column."""
        names = [column for column in self.table.columns if column.align == "left"]
        for row in self.table.rows:
            title = ", ".join(cell.text for cell in row[: len(names)])
            yield self.text(title, "bold")
            lines = Grid.grid(padding=(0, 1))
            lines.add_column(overflow="fold")
            lines.add_column(overflow="fold")
            for column, cell in zip(self.table.columns, row, strict=True):
                if column.align == "right" and cell.text != "-":
                    style = "bold" if cell.best else ""
                    lines.add_row(self.text(column.title), self.text(cell.text, style))
            yield Padding(lines, (0, 0, 0, 2))

    def _stacks(self, kept: list[int], fold: int) -> list[list[int]]:
        """Column indices, those that belong under another one after it."""
        stacks: list[list[int]] = []
        for index in kept:
            if fold > 1 and self.table.columns[index].under and stacks:
                stacks[-1].append(index)
            else:
                stacks.append([index])
        return stacks
