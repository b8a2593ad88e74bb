"""A table as a value: columns, rows and notes, drawn on a terminal of any width."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from attnkit.text import safe_text

PLUS_MINUS = "\u00b1"
NONE = "-"  # the text of a cell without a value
LEVEL = "^"  # before a value that is level with the best one
NARROWEST = 6
"""Of a folded table the first column is whole where each other one still has so many characters."""
GAP = 2
"""Characters between two columns."""
Value = str | int | float | None


@dataclass(frozen=True)
class Column:
    """One column."""

    title: str
    align: Literal["left", "right"] = "right"
    under: bool = False  # on a narrow screen the cell goes below that of the column before it
    priority: int = 0
    """0 is always shown; on a narrow screen the columns with the highest number go first."""
    wrap: bool = False  # where there is no room, its cells go on below, between words


@dataclass(frozen=True)
class Cell:
    """One cell: what people read, and what programs read."""

    text: str
    fields: Mapping[str, Value] = field(default_factory=dict)  # named values for CSV and JSON
    best: bool = False  # shown in bold
    level: bool = False  # best, or not significantly worse: shown with a mark before it
    dim: bool = False

    @property
    def mark(self) -> str:
        """What stands before the text."""
        return f"{LEVEL} " if self.level else ""


@dataclass(frozen=True)
class Table:
    """A title, columns, rows of as many cells, and notes below; a rich renderable.

    It is never wider than the screen.  It takes the first of these that fits: all columns side by
    side; differences below their scores; the same without the columns of the highest priorities,
    which a note then names; p-values below their differences; one block of lines a row.  With
    `fold` long cells are folded instead.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    fold: bool = False

    @classmethod
    def of_texts(
        cls, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *notes: str
    ) -> "Table":
        """A table of texts, long ones folded."""
        columns = tuple(Column(head, "left") for head in heads)
        return cls(title, columns, tuple(tuple(map(Cell, row)) for row in rows), notes, True)

    def records(self) -> list[dict[str, Value]]:
        """Rows as named values."""
        return [{k: v for cell in row for k, v in cell.fields.items()} for row in self.rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield _text(self.title, options, "bold")
        if self.fold:
            yield self._folded(options)
        else:
            yield from self._fitted(console, options)
        for note in self.notes:
            yield _text(note, options, "dim")
        if self.fold:
            yield ""

    def _fitted(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        wide = options.update(width=10_000, min_width=0)
        limits = sorted({0, *(column.priority for column in self.columns)}, reverse=True)
        layouts = [(1, limits[0]), *((lines, limit) for lines in (2, 3) for limit in limits)]
        for lines, limit in layouts:
            shown = [i for i, c in enumerate(self.columns) if c.priority <= limit or c.under]
            grid = self._side_by_side(shown, lines, options)
            spare = sum(self._spare(index) for index in shown)
            if Measurement.get(console, wide, grid).maximum - spare <= options.max_width:
                yield grid
                hidden = [c.title for i, c in enumerate(self.columns) if i not in shown]
                if hidden:
                    yield _text(f"not shown at this width: {', '.join(hidden)}", options, "dim")
                return
        yield from self._blocks(options)

    def _spare(self, index: int) -> int:
        """Characters that wrapping can save of a column's width."""
        if not self.columns[index].wrap:
            return 0
        texts = [safe_text(row[index].text) for row in self.rows]
        words = [word for text in (*texts, self.columns[index].title) for word in text.split()]
        longest = max(map(cell_len, texts), default=0)
        return max(0, longest - max(map(cell_len, words), default=0))

    def _side_by_side(self, shown: Sequence[int], lines: int, options: ConsoleOptions) -> Grid:
        """Columns by their indices, a score and its difference on so many lines."""
        stacks: list[list[int]] = []
        for index in shown:
            if lines > 1 and self.columns[index].under and stacks:
                stacks[-1].append(index)
            else:
                stacks.append([index])
        grid = _grid()
        for stack in stacks:
            column = self.columns[stack[0]]
            words = (_text(word, options, "bold") for word in column.title.split())
            wraps = column.wrap and not stack[1:]
            grid.add_column(Text("\n").join(words), justify=column.align, no_wrap=not wraps)
        for row in self.rows:
            grid.add_row(*(_stacked([row[i] for i in stack], lines, options) for stack in stacks))
        return grid

    def _blocks(self, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Each row as a block: its name, then one line a column."""
        names = next((i for i, c in enumerate(self.columns) if c.align == "right"), 0)
        for row in self.rows:
            yield _text(", ".join(cell.text for cell in row[:names]), options, "bold")
            lines = Grid.grid(padding=(0, 1))
            for column, cell in zip(self.columns, row, strict=True):
                if (column.align == "right" or column.wrap) and cell.text != NONE:
                    lines.add_row(_text(column.title, options), _cell_text(cell, options))
            yield Padding(lines, (0, 0, 0, 2))

    def _folded(self, options: ConsoleOptions) -> Grid:
        """Long cells on several lines: between words where the longest ones of all fit."""
        longest = max((len(row[0].text) for row in self.rows), default=0)
        rest = (NARROWEST + 1) * (len(self.columns) - 1)
        whole = longest + rest <= options.max_width
        widths = self._word_widths(options.max_width)
        grid = _grid()
        for at, column in enumerate(self.columns):
            title = _text(column.title, options, "bold")
            width = widths[at] if widths else None
            grid.add_column(title, overflow="fold", no_wrap=whole and not at, width=width)
        for row in self.rows:
            grid.add_row(*(_cell_text(cell, options) for cell in row))
        return grid

    def _word_widths(self, room: int) -> list[int] | None:
        """Widths of columns in which no word is broken; None where the room is too little."""
        texts = [
            [column.title, *(safe_text(row[at].text) for row in self.rows)]
            for at, column in enumerate(self.columns)
        ]
        needs = [max(map(cell_len, column)) for column in texts]
        widths = [max(map(cell_len, " ".join(column).split()), default=0) for column in texts]
        widths[0] = needs[0]  # it names the row
        spare = room - sum(widths) - GAP * (len(widths) - 1)
        if spare < 0:
            return None
        by_want = sorted(range(len(widths)), key=lambda at: needs[at] - widths[at])
        for left, at in zip(range(len(widths), 0, -1), by_want, strict=True):
            more = min(needs[at] - widths[at], spare // left)
            widths[at] += more
            spare -= more
        return widths


def _grid() -> Grid:
    return Grid(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))


def _text(text: str, options: ConsoleOptions, style: str = "") -> Text:
    """Text from anywhere, made harmless; long words are folded, never cut."""
    clean = " ".join(safe_text(text).split())
    if options.ascii_only:
        clean = clean.replace(PLUS_MINUS, "+-")
    return Text(clean, style=style, overflow="fold")


def _cell_text(cell: Cell, options: ConsoleOptions) -> Text:
    style = "bold" if cell.best else "dim" if cell.dim else ""
    return _text(cell.mark + cell.text, options, style)


def _stacked(cells: Sequence[Cell], lines: int, options: ConsoleOptions) -> Text:
    """A cell with those below it; what the baseline has no value for takes no line."""
    texts = [_cell_text(cells[0], options)]
    for cell in cells[1:]:
        if cell.text != NONE:
            parts = cell.text.split(" ", 1) if lines > 2 else [cell.text]
            texts += [_text(part, options) for part in parts]
    return Text("\n").join(texts)
