"""Tables as Markdown, HTML, LaTeX, CSV and JSON."""

import csv
import html
import io
import json
import re

from attnkit.show.html_document import escaped
from attnkit.show.table import NONE, PLUS_MINUS, WIDER_HINT, Cell, Column, Table
from attnkit.text import one_line, safe_text

MAX_PRIORITY = 1
"""Maximum priority of the columns that LaTeX shows."""


def markdown(table: Table) -> str:
    """Return a GitHub table under a bold title, with notes as a list."""
    titles = [markdown_text(column.title) for column in table.columns]
    rule = ["---:" if column.align == "right" else ":---" for column in table.columns]
    body = [
        [c.mark + (f"**{markdown_text(c.text)}**" if c.best else markdown_text(c.text)) for c in row]
        for row in table.rows
    ]
    lines = [f"| {' | '.join(row)} |" for row in (titles, rule, *body)]
    head = [f"**{markdown_text(table.title)}**", ""] if table.title else []
    notes = ["", *(f"- {markdown_text(note)}" for note in table.notes)] if table.notes else []
    return "\n".join([*head, *lines, *notes]) + "\n"


def html_text(table: Table) -> str:
    """Return a section: a heading, the table in a scrolling box, and notes."""
    head = "".join(
        f'<th scope="col" class="{_html_class(column)}">{escaped(column.title)}</th>' for column in table.columns
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
    r"""Return a booktabs table with a label, scaled to the text width; differences are below their scores.

    Columns with a priority above MAX_PRIORITY are left out.
    """
    hidden = [c.slug for c in table.columns if c.priority > MAX_PRIORITY and not c.key]
    shown = [at for at, c in enumerate(table.columns) if c.priority <= MAX_PRIORITY or c.key]
    stacks = table.stacks(shown, 2)
    rows = []
    for row in table.rows:
        rows.append([_latex_cell(row[stack[0]]) for stack in stacks])
        below = [row[stack[1]].text if stack[1:] else "" for stack in stacks]
        texts = ["" if text == NONE else _latex_cell(Cell(text)) for text in below]
        if any(texts):
            rows.append([rf"{{\scriptsize {text}}}" if text else "" for text in texts])
    heads = " & ".join(_latex_text(table.columns[stack[0]].title) for stack in stacks)
    alignment = "".join("r" if table.columns[s[0]].align == "right" else "l" for s in stacks)
    # at the beginning of a row, "[" and "*" would be read as options of the \\ before
    body = ["{}" * (row[0][:1] in ("[", "*")) + " & ".join(row) + r" \\" for row in rows]
    label = re.sub("[^a-z0-9]+", "-", table.title.lower()).strip("-")
    caption = [rf"\caption{{{_latex_text(table.title)}}}", rf"\label{{tab:{label}}}"]
    notes = [r"\par\smallskip"] if table.notes else []
    notes += [rf"{{\footnotesize {_latex_text(note)}\par}}" for note in table.notes]
    hint = "" if table.hint == WIDER_HINT else f" ({table.hint})"  # LaTeX is as wide on any terminal
    left_out = f"; omitted: {', '.join(hidden)}{hint}" if hidden else ""
    lines = [
        r"\begin{table}",
        rf"% needs \usepackage{{booktabs}} \usepackage{{graphicx}}{left_out}",
        r"\centering",
        *(caption if table.title else []),
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        heads + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        *notes,
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def csv_text(table: Table) -> str:
    """Return one line per row and one column per named value, numbers in full precision, without notes."""
    records = table.records()
    names = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({k: safe_text(v) if isinstance(v, str) else v for k, v in record.items()})
    return out.getvalue()


def json_text(table: Table) -> str:
    """Return a JSON object of title, rows of named values, and notes."""
    parts = {"title": table.title, "rows": table.records(), "notes": list(table.notes)}
    return json.dumps(parts, indent=2) + "\n"


def _html_class(column: Column, cell: Cell | None = None) -> str:
    return column.align + " wrap" * column.wrap + " dim" * (cell is not None and cell.dim)


def _html_cell(cell: Cell, column: Column) -> str:
    """Return the content of a cell; left-aligned names may break after "/", "+" and "_", for narrow screens."""
    text = escaped(cell.text)
    if column.align == "left":
        text = re.sub("([/+_])", r"\1<wbr>", text)
    if cell.marked:
        text = re.sub(r"\[([^]]*)\]", r"<mark>[\1]</mark>", text)
    return html.escape(cell.mark) + (f"<b>{text}</b>" if cell.best else text)


def markdown_text(text: str) -> str:
    """Return sanitized text on one line with Markdown escaped."""
    line = one_line(text)
    return re.sub(r"([\\`*_\[\]<>|&~$])", r"\\\1", line)


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    PLUS_MINUS: r"$\pm$",
}


def _latex_text(text: str) -> str:
    line = one_line(text)
    return "".join(_LATEX.get(character, character) for character in line)


def _latex_cell(cell: Cell) -> str:
    text = re.sub(r"(^|\[|, )-(?=\d)", r"\1$-$", _latex_text(cell.text))
    mark = f"{_latex_text(cell.mark)} " if cell.mark else ""
    return mark + (rf"\textbf{{{text}}}" if cell.best else text)
