"""A table of columns, rows and notes, rendered on a terminal of any width."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from attnkit.text import one_line

PLUS_MINUS = "\u00b1"
NONE = "-"  # text of a cell without a value
INSEPARABLE = "^"  # before a value that is not separable from the best value
COMFORTABLE_WIDTH = 24
"""Preferred width of a column of wrapping text, in characters; on a narrow screen a third of the screen."""
GAP = 2
"""Number of characters between two columns."""
WIDER_HINT = "a wider terminal shows them"
Value = str | int | float | None


@dataclass(frozen=True)
class Cell:
    """A text for people, and named values for programs."""

    text: str
    fields: Mapping[str, Value] = field(default_factory=dict)  # named values for CSV and JSON
    best: bool = False  # shown in bold
    inseparable: bool = False  # best, or not separable from the best: shown with a mark before the text
    dim: bool = False
    marked: bool = False  # words in brackets are highlighted

    @property
    def mark(self) -> str:
        """Prefix of the text."""
        return f"{INSEPARABLE} " if self.inseparable else ""


@dataclass(frozen=True)
class Column:
    """The value that a column shows of each item, its format and its placement."""

    title: str
    value: Callable[[Any], Value | Cell] = str
    """Function from an item to its value, or to its whole cell."""
    form: str | Callable[[Any], str] = "{}"
    """Format of a value; None is shown as NONE."""
    name: str = ""
    """Name of the value for programs; empty: `slug`."""
    align: Literal["left", "right"] = "right"
    priority: int = 0
    """0: always shown; on a narrow screen the columns with the highest priorities are left out first."""
    wrap: bool = False  # cells may be wrapped between words
    key: bool = False  # names the row, as the first column always does; never left out
    under: bool = False  # on a narrow screen, cells are shown below those of the previous column
    best: Callable[[Any], bool] | None = None  # whether the value of an item is shown in bold

    @property
    def slug(self) -> str:
        """Title as a single word, as in `--columns`."""
        return "-".join(self.title.split())

    def cell(self, item: Any) -> Cell:
        """Return the cell of an item."""
        value = self.value(item)
        if isinstance(value, Cell):
            return value
        if value is None:
            text = NONE
        else:
            text = self.form.format(value) if isinstance(self.form, str) else self.form(value)
        best = self.best is not None and self.best(item)
        return Cell(text, {self.name or self.slug: value}, best)


@dataclass(frozen=True)
class Table:
    """A rich renderable of a title, columns, rows and notes.

    It is never wider than the screen, and breaks only words wider than the screen. It uses the first layout that fits:
    all columns side by side; differences below their scores; the same without the columns of the highest priorities,
    which a note lists; intervals and p-values below their differences; a block of lines per row.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    hint: str = WIDER_HINT  # how to see the columns that are left out
    brief: frozenset[str] | None = None
    """Notes that are necessary to understand the cells; None: all."""

    @classmethod
    def of(
        cls,
        title: str,
        items: Iterable[Any],
        columns: Iterable[Column],
        notes: Iterable[str] = (),
        hint: str = WIDER_HINT,
        record: Callable[[Any], Mapping[str, Value]] | None = None,
    ) -> "Table":
        """Return a table with one row per item; `record` overrides the columns' named values for programs."""
        columns, rows = tuple(columns), []
        for item in items:
            cells = [column.cell(item) for column in columns]
            if record is not None:
                cells = [replace(cell, fields={}) for cell in cells]
                cells[0] = replace(cells[0], fields=record(item))
            rows.append(tuple(cells))
        return cls(title, columns, tuple(rows), tuple(notes), hint)

    @classmethod
    def of_texts(cls, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *notes: str) -> "Table":
        """Return a table of texts; all columns but the first wrap."""
        columns = tuple(Column(head, align="left", wrap=at > 0) for at, head in enumerate(heads))
        return cls(title, columns, tuple(tuple(map(Cell, row)) for row in rows), notes)

    def records(self) -> list[dict[str, Value]]:
        """Return the named values of each row; if no cell has any, the texts by column."""
        if any(cell.fields for row in self.rows for cell in row):
            return [{k: v for cell in row for k, v in cell.fields.items()} for row in self.rows]
        names = [column.slug for column in self.columns]
        return [dict(zip(names, (cell.text for cell in row), strict=True)) for row in self.rows]

    def is_key(self, at: int) -> bool:
        """Return whether column `at` names the row."""
        return at == 0 or self.columns[at].key

    def names(self) -> list[str]:
        """Return the names of the columns without duplicates."""
        return list(dict.fromkeys(column.slug for column in self.columns if column.slug))

    def with_notes(self, level: str) -> "Table":
        """Return the table with the notes of a level: "none", "short" (those in `brief`) or "full"."""
        kept = self.notes if self.brief is None else self.brief
        brief = tuple(note for note in self.notes if note in kept)
        return replace(self, notes={"none": (), "short": brief, "full": self.notes}[level])

    def choose(self, names: Sequence[str]) -> "Table":
        """Return the table with only the named columns (ignoring case), which are always shown.

        Columns that name the row are kept, and so is the score of a selected difference.
        """
        wanted = {name.casefold() for name in names}
        keep = {at for at, column in enumerate(self.columns) if self.is_key(at) or column.slug.casefold() in wanted}
        for at in sorted(keep, reverse=True):
            if self.columns[at].under:
                keep.add(at - 1)
        chosen = sorted(keep)
        columns = tuple(replace(self.columns[at], priority=0) for at in chosen)
        rows = tuple(tuple(row[at] for at in chosen) for row in self.rows)
        return replace(self, columns=columns, rows=rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield _text(self.title, options, "bold")
        yield from self._fitted(console, options)
        for note in self.notes:
            yield _text(note, options, "dim")

    def _fitted(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        limits = sorted({0, *(column.priority for column in self.columns)}, reverse=True)
        for lines, limit in ((1, limits[0]), *((n, limit) for n in (2, 4) for limit in limits)):
            shown = [i for i, c in enumerate(self.columns) if c.priority <= limit or c.under]
            grid = self._grid(self.stacks(shown, lines), lines, console, options)
            if grid is not None:
                yield grid
                hidden = [c.slug for i, c in enumerate(self.columns) if i not in shown]
                if hidden:
                    width, left_out = options.max_width, ", ".join(dict.fromkeys(hidden))
                    yield _text(f"columns omitted at width {width}: {left_out}; {self.hint}", options, "dim")
                return
        yield from self._blocks(options)

    def stacks(self, shown: Sequence[int], lines: int) -> list[list[int]]:
        """Return groups of column indices; with several `lines` per row, a group is shown in one place."""
        stacks: list[list[int]] = []
        for index in shown:
            if lines > 1 and self.columns[index].under and stacks:
                stacks[-1].append(index)
            else:
                stacks.append([index])
        return stacks

    def _grid(
        self, stacks: Sequence[Sequence[int]], lines: int, console: Console, options: ConsoleOptions
    ) -> Grid | None:
        """Return the stacks of columns side by side, or None if they do not fit.

        Spare room is shared among the columns that need more, those that need the least first.
        """
        grid = Grid(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        cells_of_stacks, max_widths = [], []
        for stack in stacks:
            column = self.columns[stack[0]]
            title = _text(column.title, options, "bold")
            cells = [_stacked([row[at] for at in stack], lines, options) for row in self.rows]
            sizes = [Measurement.get(console, options, text) for text in cells]
            head = Measurement.get(console, options, title)
            min_width = max(head.minimum, *(size.minimum for size in sizes), 0)
            width = max((size.maximum for size in sizes), default=0)
            max_widths.append(max(width, head.maximum, min_width))
            if column.wrap and not stack[1:]:
                width = min(width, COMFORTABLE_WIDTH, options.max_width // 3)
            grid.add_column(title, justify=column.align, overflow="fold", width=max(min_width, width))
            cells_of_stacks.append(cells)
        room = options.max_width - GAP * (len(stacks) - 1)
        spare = room - sum(column.width or 0 for column in grid.columns)
        if spare < 0:
            return None
        by_need = sorted(zip(grid.columns, max_widths, strict=True), key=lambda pair: pair[1] - (pair[0].width or 0))
        for left, (grid_column, max_width) in zip(range(len(stacks), 0, -1), by_need, strict=True):
            width = grid_column.width or 0
            grid_column.width = min(max_width, width + spare // left)
            spare -= grid_column.width - width
        for row in zip(*cells_of_stacks, strict=True):
            grid.add_row(*row)
        return grid

    def _blocks(self, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield each row as a block: its name, then one line per column; two titles are shown once, at the top."""
        titles = [_text(column.title, options) for column in self.columns]
        if titles_on_top := len(titles) == 2:
            yield Text(": ", "bold", overflow="fold").join(filter(None, titles))
        for row in self.rows:
            name = ", ".join(cell.text for at, cell in enumerate(row) if self.is_key(at))
            yield _text(name, options, "bold")
            lines = Grid.grid(padding=(0, 1))
            for at, cell in enumerate(row):
                if not self.is_key(at) and cell.text not in ("", NONE):
                    text = _joined(_lines(cell, options, self.columns[at].under))
                    lines.add_row(*([] if titles_on_top else [titles[at]]), text)
            yield Padding(lines, (0, 0, 0, 2))


def _text(text: str, options: ConsoleOptions, style: str = "") -> Text:
    """Return sanitized text in which words wider than the screen are folded, if possible after a `|` or `/`."""
    clean = one_line(text)
    max_width = options.max_width
    for word in re.findall(rf"\S{{{max_width + 1},}}", clean):
        pattern = rf"(?=.{{{max_width + 1}}})(.{{1,{max(max_width - 1, 1)}}}[|/])"  # only if the rest is too long
        clean = clean.replace(word, re.sub(pattern, "\\1\n", word))
    return Text(clean, style=style, overflow="fold")


def _stacked(cells: Sequence[Cell], lines: int, options: ConsoleOptions) -> Text:
    """Return a cell with the cells below it, except those without a value.

    With more than two lines, the interval and p-value of a difference are shown below it.
    """
    visible = [(at, cell) for at, cell in enumerate(cells) if not at or cell.text not in ("", NONE)]
    return _joined(line for at, cell in visible for line in _lines(cell, options, at > 0 and lines > 2))


def _lines(cell: Cell, options: ConsoleOptions, split: bool) -> list[Text]:
    """Return the lines of a cell; `split` puts the interval and p-value of a difference on lines of their own."""
    style = "bold" if cell.best else "dim" if cell.dim else ""
    parts = re.split(r" (?=\[|p[=<])", cell.text) if split else [cell.text]
    parts[0] = cell.mark + parts[0]
    texts = [_text(part, options, style) for part in parts]
    if cell.marked:
        texts[0].highlight_regex(r"\[[^]]*\]", "bold yellow")
    return texts


def _joined(lines: Iterable[Text]) -> Text:
    return Text("\n", overflow="fold").join(lines)
