"""Parts of a report, written as a self-contained HTML file, or as Markdown with a folder of figures."""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from attnkit.show.html_document import document, escaped
from attnkit.show.table import Table
from attnkit.show.table_formats import html_text, markdown_text
from attnkit.show.table_formats import markdown as markdown_table


@dataclass(frozen=True)
class Figure:
    """An SVG picture."""

    name: str
    """Name of its file without suffix: letters, digits and hyphens."""
    title: str
    svg: bytes


@dataclass(frozen=True)
class Fold:
    """Blocks that are hidden until a reader opens them; prints show them."""

    title: str
    blocks: "Sequence[Block]"
    open: bool = False


Block = str | Figure | Fold | Table
"""Part of a section; a text is a paragraph."""


class Report(NamedTuple):
    """A title, and the blocks of each section by its heading."""

    title: str
    facts: str  # subtitle: task, number of systems and runs
    sections: dict[str, list[Block]]
    made_by: str  # command, and version of attnkit


def page(report: Report) -> bytes:
    """Return a self-contained HTML file; equal reports give equal bytes.

    The file is complete without its script, which changes the colors and opens folded blocks for printing.
    """
    numbered = list(enumerate(report.sections.items(), 1))
    links = (f'<a href="#s{n}">{escaped(title)}</a>' for n, (title, _) in numbered)
    sections = (f'<h2 id="s{n}">{escaped(title)}</h2>{"".join(map(_html, blocks))}' for n, (title, blocks) in numbered)
    parts = {
        "facts": escaped(report.facts),
        "contents": "\n".join(links),
        "sections": "\n".join(sections),
        "made-by": escaped(report.made_by),
    }
    return document(
        Path(__file__).parent,
        report.title,
        {},
        scripts=("../frame.js", "page.js"),
        styles=("../tables.css", "page.css"),
        parts=parts,
    )


def _html(block: Block) -> str:
    match block:
        case str():
            return f"<p>{escaped(block)}</p>\n"
        case Figure():
            image = base64.b64encode(block.svg).decode()
            return (
                f'<figure><div class="scroll" tabindex="0"><img alt="{escaped(block.title)}" '
                f'src="data:image/svg+xml;base64,{image}"></div></figure>\n'
            )
        case Fold():
            opened = " open" if block.open else ""
            summary = f"<summary>{escaped(block.title)}</summary>"
            inside = "".join(map(_html, block.blocks))
            return f'<details{opened}>{summary}<div class="columns">{inside}</div></details>\n'
    return html_text(block)


def markdown(report: Report, folder: str) -> tuple[str, dict[str, bytes]]:
    """Return the text of a Markdown file, and the figures to be written to `folder` beside it, by file name."""
    parts = [f"# {markdown_text(report.title)}", markdown_text(report.facts)]
    for title, blocks in report.sections.items():
        parts += [f"## {markdown_text(title)}", *_markdown(blocks, 3, folder.replace(" ", "%20"))]
    parts.append(f"*{markdown_text(report.made_by)}*")
    figures = {f"{one.name}.svg": one.svg for blocks in report.sections.values() for one in _figures(blocks)}
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n", figures


def _figures(blocks: Sequence[Block]) -> Iterator[Figure]:
    for block in blocks:
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Fold):
            yield from _figures(block.blocks)


def _markdown(blocks: Sequence[Block], level: int, folder: str) -> Iterator[str]:
    """Yield each block as text, with headings of this level."""
    for block in blocks:
        match block:
            case str():
                yield markdown_text(block)
            case Figure():
                yield f"![{markdown_text(block.title)}]({folder}/{block.name}.svg)"
            case Fold():
                yield f"{'#' * level} {markdown_text(block.title)}"
                yield from _markdown(block.blocks, level + 1, folder)
            case _:
                yield markdown_table(block)
