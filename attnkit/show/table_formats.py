"""A table as Markdown, HTML, LaTeX, CSV and JSON text."""

import csv
import html
import io
import json
import math
import re
from typing import NamedTuple

from attnkit.show.html_document import escaped
from attnkit.show.table import NONE, PLUS_MINUS, WIDER, Cell, Column, Table
from attnkit.text import one_line, safe_text

TEXT_WIDTH = 345.0
"""Points of a line of LaTeX's article, on which a table has to fit."""
CHARACTER, GAP = 5.0, 12.0
"""Points that a character of 10 point type takes, about, and the space between two columns."""
NEAR = 0.75 * TEXT_WIDTH
"""Wider ones are measured by LaTeX itself, and scaled if they do not fit."""
SMALLER = 0.8
"""The size of footnotes."""
FEW = 1
"""Columns of a higher priority are left out in LaTeX."""


def markdown(table: Table) -> str:
    """A GitHub table under a heading line, notes as a list."""
    titles = [markdown_text(column.title) for column in table.columns]
    rule = ["---:" if column.align == "right" else ":---" for column in table.columns]
    body = [
        [
            c.mark + (f"**{markdown_text(c.text)}**" if c.best else markdown_text(c.text))
            for c in row
        ]
        for row in table.rows
    ]
    lines = [f"| {' | '.join(row)} |" for row in (titles, rule, *body)]
    head = [f"**{markdown_text(table.title)}**", ""] if table.title else []
    notes = ["", *(f"- {markdown_text(note)}" for note in table.notes)] if table.notes else []
    return "\n".join([*head, *lines, *notes]) + "\n"


def html_text(table: Table) -> str:
    """A section with a heading, the table in a box that scrolls by itself, and notes."""
    head = "".join(
        f'<th scope="col" class="{_html_class(column)}">{escaped(column.title)}</th>'
        for column in table.columns
    )
    rows = (
        "".join(
            f'<td class="{_html_class(column, cell)}">{_html_cell(cell, column)}</td>'
            for column, cell in zip(table.columns, row, strict=True)
        )
        for row in table.rows
    )
    title = escaped(table.title)
    heading = f"<h3>{title}</h3>" if title else ""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    grid = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    box = f'<div class="scroll" role="region" aria-label="{title}" tabindex="0">{grid}</div>'
    notes = "".join(f'<p class="note">{escaped(note)}</p>' for note in table.notes)
    return f"<section>{heading}{box}{notes}</section>\n"


def latex(table: Table) -> str:
    r"""A booktabs table with a label, at most as wide as the text, without its last columns.

    Where columns side by side would be too wide, differences stand below their scores, then the
    type is smaller, and at last the whole is scaled, if LaTeX finds it too wide.
    """
    hidden = [c.name for c in table.columns if c.priority > FEW and not c.key]
    grid = _LatexGrid.of(table, 1)
    if grid.width > TEXT_WIDTH:
        grid = _LatexGrid.of(table, 2)
    small = grid.width > TEXT_WIDTH
    scaled = grid.width * (SMALLER if small else 1) > NEAR
    label = re.sub("[^a-z0-9]+", "-", table.title.lower()).strip("-")
    caption = [rf"\caption{{{_latex_text(table.title)}}}", rf"\label{{tab:{label}}}"]
    notes = [r"\par\smallskip"] if table.notes else []
    notes += [rf"{{\footnotesize {_latex_text(note)}\par}}" for note in table.notes]
    packages = r"\usepackage{booktabs}" + r" \usepackage{graphicx}" * scaled
    how = "" if table.how == WIDER else f" ({table.how})"  # LaTeX is as wide on any terminal
    left_out = f"; left out: {', '.join(hidden)}{how}" if hidden else ""
    lines = [
        r"\begin{table}", f"% needs {packages}{left_out}", r"\centering",
        *(caption if table.title else []), *([r"\footnotesize"] if small else []),
        *([r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"] if scaled else []),
        rf"\begin{{tabular}}{{{grid.columns}}}", r"\toprule", grid.heads, r"\midrule", *grid.rows,
        r"\bottomrule", r"\end{tabular}" + "}" * scaled, *notes, r"\end{table}", "",
    ]  # fmt: skip
    return "\n".join(lines)


class _LatexGrid(NamedTuple):
    """The lines of a tabular, and how many points they take, about."""

    columns: str
    heads: str
    rows: list[str]
    width: float

    @classmethod
    def of(cls, table: Table, lines: int) -> "_LatexGrid":
        """The first columns, with a second line for differences where there are two a row."""
        shown = [at for at, c in enumerate(table.columns) if c.priority <= FEW or c.key]
        stacks = table.stacks(shown, lines)
        rows, below = [], any(stack[1:] for stack in stacks)
        for row in table.rows:
            rows.append([_latex_cell(row[stack[0]]) for stack in stacks])
            if below:
                more = (row[stack[1]].text if stack[1:] else "" for stack in stacks)
                texts = ["" if text == NONE else _latex_cell(Cell(text)) for text in more]
                if any(texts):
                    rows.append([rf"{{\scriptsize {text}}}" if text else "" for text in texts])
        heads = [table.columns[stack[0]].title for stack in stacks]
        width = GAP * len(stacks)
        for head, stack in zip(heads, stacks, strict=True):
            sizes = [
                len(head),
                *(len(row[stack[0]].mark + row[stack[0]].text) for row in table.rows),
            ]
            sizes += [math.ceil(0.7 * len(row[at].text)) for row in table.rows for at in stack[1:]]
            width += CHARACTER * max(sizes)
        written = [" & ".join(row) + r" \\" for row in rows]
        # at the beginning of a row these would be read as options of the one before
        written = ["{}" + row if row[0] in "[*" else row for row in written]
        columns = "".join("r" if table.columns[s[0]].align == "right" else "l" for s in stacks)
        return cls(columns, " & ".join(map(_latex_text, heads)) + r" \\", written, width)


def csv_text(table: Table) -> str:
    """One line a row, one column a named value, numbers in full precision; notes are left out."""
    records = table.records()
    names = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({k: safe_text(v) if isinstance(v, str) else v for k, v in record.items()})
    return out.getvalue()


def json_text(table: Table) -> str:
    """Title, rows of named values and notes as one JSON object."""
    parts = {"title": table.title, "rows": table.records(), "notes": list(table.notes)}
    return json.dumps(parts, indent=2) + "\n"


def _html_class(column: Column, cell: Cell | None = None) -> str:
    """How a cell, or the head of a column, looks."""
    return column.align + " wrap" * column.wrap + " dim" * (cell is not None and cell.dim)


def _html_cell(cell: Cell, column: Column) -> str:
    """A name may be broken behind a sign where a phone has no room for it."""
    text = escaped(cell.text)
    if column.align == "left":
        text = re.sub("([/+_])", r"\1<wbr>", text)
    return html.escape(cell.mark) + (f"<b>{text}</b>" if cell.best else text)


def markdown_text(text: str) -> str:
    """Text from anywhere on one line that is no Markdown."""
    line = one_line(text)
    return re.sub(r"([\\`*_\[\]<>|&~$])", r"\\\1", line)


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "_": r"\_", "%": r"\%", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": "$<$", ">": "$>$", "|": r"\textbar{}", PLUS_MINUS: r"$\pm$",
}  # fmt: skip


def _latex_text(text: str) -> str:
    line = one_line(text)
    return "".join(_LATEX.get(character, character) for character in line)


def _latex_cell(cell: Cell) -> str:
    text = re.sub(r"(^|\[|, )-(?=\d)", r"\1$-$", _latex_text(cell.text))
    mark = f"{_latex_text(cell.mark)} " if cell.mark else ""
    return mark + (rf"\textbf{{{text}}}" if cell.best else text)
