"""A table as a value: columns, rows and notes, drawn on a terminal of any width."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from attnkit.text import one_line

PLUS_MINUS = "\u00b1"
NONE = "-"  # the text of a cell without a value
INSEPARABLE = "^"  # before a value that is not separable from the best one
COMFORTABLE = 24
"""Characters that a column of wrapping text should have, or a third of a narrow screen."""
GAP = 2
"""Characters between two columns."""
WIDER = "a wider terminal shows them"
Value = str | int | float | None
Align = Literal["left", "right"]


@dataclass(frozen=True)
class Column:
    """One column."""

    title: str
    align: Align = "right"
    under: bool = False  # on a narrow screen the cell goes below that of the column before it
    priority: int = 0
    """0 is always shown; on a narrow screen the columns with the highest number go first."""
    wrap: bool = False  # where there is no room, its cells go on below, between words
    key: bool = False  # names the row, as the first column always does; never left out

    @property
    def name(self) -> str:
        """Its title as one word, as `--columns` takes it."""
        return "-".join(self.title.split())


@dataclass(frozen=True)
class Cell:
    """One cell: what people read, and what programs read."""

    text: str
    fields: Mapping[str, Value] = field(default_factory=dict)  # named values for CSV and JSON
    best: bool = False  # shown in bold
    inseparable: bool = False  # the best, or not separable from it: shown with a mark before it
    dim: bool = False

    @property
    def mark(self) -> str:
        """What stands before the text."""
        return f"{INSEPARABLE} " if self.inseparable else ""


@dataclass(frozen=True)
class Field:
    """A column described: what it shows of an item, for people and for programs."""

    title: str
    value: Callable[[Any], Value]
    form: str | Callable[[Any], str] = "{}"  # of a value as text; None is NONE
    name: str = ""  # of the value for programs; that of the column when empty
    align: Align = "right"
    priority: int = 0
    wrap: bool = False
    key: bool = False
    under: bool = False
    best: Callable[[Any], bool] | None = None

    @property
    def column(self) -> Column:
        return Column(self.title, self.align, self.under, self.priority, self.wrap, self.key)

    def cell(self, item: Any) -> Cell:
        """What stands in the row of an item."""
        value = self.value(item)
        if value is None:
            text = NONE
        else:
            text = self.form.format(value) if isinstance(self.form, str) else self.form(value)
        best = self.best is not None and self.best(item)
        return Cell(text, {self.name or self.column.name: value}, best)


@dataclass(frozen=True)
class Table:
    """A title, columns, rows of as many cells, and notes below; a rich renderable.

    It is never wider than the screen, and breaks no word that the screen has room for.  It takes
    the first of these that fits: all columns side by side; differences below their scores; the
    same without the columns of the highest priorities, which a note then names; p-values below
    their differences, then intervals too; one block of lines a row.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    how: str = WIDER  # how to see the columns that are left out
    about: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Titles of the columns that a note is about, where it is not about the whole table."""
    brief: frozenset[str] | None = None
    """Notes without which the cells cannot be read; None: all of them."""

    @classmethod
    def of(
        cls,
        title: str,
        items: Iterable[Any],
        fields: Iterable[Field],
        notes: Iterable[str] = (),
        how: str = WIDER,
        record: Callable[[Any], Mapping[str, Value]] | None = None,
    ) -> "Table":
        """A row for each item, a column for each field.

        `record` gives the named values of an item for programs, instead of those of the fields.
        """
        described = tuple(fields)
        rows = []
        for item in items:
            cells = [one.cell(item) for one in described]
            if record is not None:
                cells = [replace(cell, fields={}) for cell in cells]
                cells[0] = replace(cells[0], fields=record(item))
            rows.append(tuple(cells))
        columns = tuple(one.column for one in described)
        return cls(title, columns, tuple(rows), tuple(notes), how)

    @classmethod
    def of_texts(
        cls, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *notes: str
    ) -> "Table":
        """A table of texts, of which all but the first of a row wrap."""
        columns = tuple(Column(head, "left", wrap=at > 0) for at, head in enumerate(heads))
        return cls(title, columns, tuple(tuple(map(Cell, row)) for row in rows), notes)

    def records(self) -> list[dict[str, Value]]:
        """Rows as named values; the texts by the names of their columns where no cell has any."""
        if any(cell.fields for row in self.rows for cell in row):
            return [{k: v for cell in row for k, v in cell.fields.items()} for row in self.rows]
        names = [column.name for column in self.columns]
        return [dict(zip(names, (cell.text for cell in row), strict=True)) for row in self.rows]

    def is_key(self, at: int) -> bool:
        """Whether the column at this place names the row."""
        return at == 0 or self.columns[at].key

    def names(self) -> list[str]:
        """Names of the columns, each once."""
        return list(dict.fromkeys(column.name for column in self.columns if column.name))

    def with_notes(self, how: str) -> "Table":
        """The same table without notes, with the brief ones, or with all."""
        kept = self.notes if self.brief is None else self.brief
        brief = tuple(note for note in self.notes if note in kept)
        return replace(self, notes={"none": (), "short": brief, "full": self.notes}[how])

    def choose(self, names: Sequence[str]) -> "Table":
        """The same table with these columns only, never leaving one out; case does not matter.

        What names the row stays, and so does a score whose difference is asked for.  Notes about
        columns that are not chosen go.
        """
        wanted = {name.casefold() for name in names}
        keep = {at for at, column in enumerate(self.columns)
                if self.is_key(at) or column.name.casefold() in wanted}  # fmt: skip
        for at in sorted(keep, reverse=True):
            if self.columns[at].under:
                keep.add(at - 1)
        chosen = sorted(keep)
        columns = tuple(replace(self.columns[at], priority=0) for at in chosen)
        rows = tuple(tuple(row[at] for at in chosen) for row in self.rows)
        titles = {column.title for column in columns}
        notes = tuple(
            note for note in self.notes
            if not self.about.get(note) or titles.intersection(self.about[note])
        )  # fmt: skip
        return replace(self, columns=columns, rows=rows, notes=notes)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield _text(self.title, options, "bold")
        yield from self._fitted(console, options)
        for note in self.notes:
            yield _note(note, options)

    def _fitted(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        limits = sorted({0, *(column.priority for column in self.columns)}, reverse=True)
        layouts = [(1, limits[0]), *((lines, limit) for lines in (2, 3, 4) for limit in limits)]
        for least in (min(COMFORTABLE, options.max_width // 3), 0):
            for lines, limit in layouts:
                shown = [i for i, c in enumerate(self.columns) if c.priority <= limit or c.under]
                strips = self._strips(shown, lines, options, least)
                if _width(strips) <= options.max_width:
                    yield _grid(strips, console, options.max_width)
                    hidden = [c.name for i, c in enumerate(self.columns) if i not in shown]
                    if hidden:
                        width, left_out = options.max_width, ", ".join(dict.fromkeys(hidden))
                        note = f"left out at {width} columns: {left_out}; {self.how}"
                        yield _note(note, options)
                    return
        yield from self._blocks(options)

    def _strips(
        self, shown: Sequence[int], lines: int, options: ConsoleOptions, least: int
    ) -> "list[_Strip]":
        """Columns by their indices, a score and its difference on so many lines."""
        return [
            _Strip.of(
                _text(self.columns[stack[0]].title, options, "bold"),
                [_stacked([row[i] for i in stack], lines, options) for row in self.rows],
                self.columns[stack[0]].align,
                least if self.columns[stack[0]].wrap and not stack[1:] else None,
            )
            for stack in self.stacks(shown, lines)
        ]

    def stacks(self, shown: Sequence[int], lines: int) -> list[list[int]]:
        """Columns that share a place on so many lines a row, by their indices."""
        stacks: list[list[int]] = []
        for index in shown:
            if lines > 1 and self.columns[index].under and stacks:
                stacks[-1].append(index)
            else:
                stacks.append([index])
        return stacks

    def _blocks(self, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Each row as a block: its name, then one line a column."""
        for row in self.rows:
            name = ", ".join(cell.text for at, cell in enumerate(row) if self.is_key(at))
            yield _text(name, options, "bold")
            lines = Grid.grid(padding=(0, 1))
            for at, cell in enumerate(row):
                if not self.is_key(at) and cell.text not in ("", NONE):
                    title = _text(self.columns[at].title, options)
                    parts = _parts(cell, 4)
                    texts = (_cell_text(replace(cell, text=part), options) for part in parts)
                    lines.add_row(title, Text("\n").join(texts))
            yield Padding(lines, (0, 0, 0, 2))


class _Strip(NamedTuple):
    """One column as it is drawn."""

    title: Text
    cells: list[Text]
    align: Align
    least: int
    """Its width when it wraps as much as it may."""
    whole: int
    """Its width when nothing wraps."""

    @classmethod
    def of(cls, title: Text, cells: list[Text], align: Align, least: int | None) -> "_Strip":
        """A column whose title wraps, and whose cells do so too, to `least` unless that is None."""
        needs = max(map(_longest_line, cells), default=0)
        words = max(map(_longest_word, (title, *cells)), default=0)
        narrowest = needs if least is None else min(needs, least)
        return cls(
            title, cells, align, max(words, narrowest), max(needs, _longest_line(title), words)
        )

    def fitted(self, width: int, console: Console) -> int:
        """The width that its texts take when they are wrapped at a width, at least `least`."""
        lines = (line for text in (self.title, *self.cells) for line in text.wrap(console, width))
        return max(self.least, *(cell_len(line.plain.rstrip()) for line in lines))


def _longest_word(text: Text) -> int:
    return max(map(cell_len, text.plain.split()), default=0)


def _longest_line(text: Text) -> int:
    return max(map(cell_len, text.plain.split("\n")))


def _width(strips: Sequence[_Strip]) -> int:
    """The least width of columns side by side."""
    return sum(strip.least for strip in strips) + GAP * (len(strips) - 1)


def _grid(strips: Sequence[_Strip], console: Console, room: int) -> Grid:
    """Columns side by side; what room is left goes to those that wrap."""
    widths = [strip.least for strip in strips]
    spare = room - _width(strips)
    by_want = sorted(range(len(strips)), key=lambda at: strips[at].whole - widths[at])
    for left, at in zip(range(len(strips), 0, -1), by_want, strict=True):
        strip, most = strips[at], widths[at] + spare // left
        widths[at] = strip.whole if most >= strip.whole else strip.fitted(most, console)
        spare -= widths[at] - strip.least
    grid = Grid(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for strip, width in zip(strips, widths, strict=True):
        grid.add_column(strip.title, justify=strip.align, width=width, overflow="fold")
    for row in zip(*(strip.cells for strip in strips), strict=True):
        grid.add_row(*row)
    return grid


def _text(text: str, options: ConsoleOptions, style: str = "") -> Text:
    """Text from anywhere, made harmless; a word that no line has room for is folded, never cut."""
    clean = one_line(text)
    if options.ascii_only:
        clean = clean.replace(PLUS_MINUS, "+-")
    return Text(clean, style=style, overflow="fold")


def _note(text: str, options: ConsoleOptions) -> Text:
    """A note; a word that no line has room for goes on below after a comma or a bar."""
    lines = [""]
    for word in _text(text, options).plain.split(" "):
        long = cell_len(word) > options.max_width
        parts = re.findall(r"(?:\\.|[^,|])+[,|]*|[,|]+", word) if long else [word]
        for at, part in enumerate(parts):
            longer = lines[-1] + (" " if lines[-1] and not at else "") + part
            if lines[-1] and cell_len(longer) > options.max_width:
                lines.append(part)
            else:
                lines[-1] = longer
    return Text("\n".join(lines), style="dim", overflow="fold")


def _cell_text(cell: Cell, options: ConsoleOptions) -> Text:
    style = "bold" if cell.best else "dim" if cell.dim else ""
    return _text(cell.mark + cell.text, options, style)


def _stacked(cells: Sequence[Cell], lines: int, options: ConsoleOptions) -> Text:
    """A cell with those below it; what the baseline has no value for takes no line.

    With more than two lines a p-value stands below its difference, with more than three so does the
    interval.
    """
    texts = [_cell_text(cells[0], options)]
    for cell in cells[1:]:
        if cell.text not in ("", NONE):
            texts += [_text(part, options) for part in _parts(cell, lines)]
    return Text("\n").join(texts)


def _parts(cell: Cell, lines: int) -> list[str]:
    """A difference, its interval and its p-value, in at most so many lines less one."""
    before = {2: "$.", 3: "p[=<]"}.get(lines, r"\[|p[=<]")
    return re.split(f" (?={before})", cell.text)
