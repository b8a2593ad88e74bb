"""A report as one HTML file that needs nothing else: no network, no other file."""

import base64
from collections.abc import Sequence
from pathlib import Path

from attnkit.scoring.word_marks import Span
from attnkit.show.html_document import document, escaped
from attnkit.show.output_examples import (
    EMPTY,
    MISSING,
    ExampleRow,
    example_rows,
    heading,
    marks_note,
)
from attnkit.show.report.blocks import Block, Examples, Figure, Fold, Marks, Note, Report
from attnkit.show.table_formats import html_text


def page(report: Report) -> bytes:
    """The page; the same report gives the same bytes.

    It is whole without its script, which changes the colours and opens what is folded for print.
    """
    places = [f"s{number}" for number in range(1, len(report.sections) + 1)]
    links = (
        f'<a href="#{place}">{escaped(section.title)}</a>'
        for place, section in zip(places, report.sections, strict=True)
    )
    sections = (
        f'<h2 id="{place}">{escaped(section.title)}</h2>{_blocks(section.blocks)}'
        for place, section in zip(places, report.sections, strict=True)
    )
    return document(
        Path(__file__).parent,
        report.title,
        {},
        scripts=("../frame.js", "page.js"),
        styles=("../tables.css", "page.css"),
        parts={
            "facts": escaped(report.facts),
            "contents": "\n".join(links),
            "sections": "\n".join(sections),
            "made-by": escaped(report.made_by),
        },
    )


def _blocks(blocks: Sequence[Block]) -> str:
    return "".join(map(_block, blocks))


def _block(block: Block) -> str:
    match block:
        case Note():
            return f"<p>{escaped(block.text)}</p>\n"
        case Figure():
            drawings = "".join(
                f'<div class="scroll" tabindex="0"><img alt="{escaped(one.title)}" '
                f'src="data:image/svg+xml;base64,{base64.b64encode(one.svg).decode()}"></div>'
                for one in block.drawings
            )
            caption = escaped(block.caption)
            caption = f"<figcaption>{caption}</figcaption>" if caption else ""
            return f'<figure><div class="drawings">{drawings}</div>{caption}</figure>\n'
        case Marks():
            words = ("<mark>marked</mark>", f'<mark class="gap">{MISSING}</mark>')
            return f"<p>{marks_note(*words)}</p>\n"
        case Examples():
            return _examples(block)
        case Fold():
            opened = " open" if block.open else ""
            summary = f"<summary>{escaped(block.title)}</summary>"
            columns = any(isinstance(one, Examples) for one in block.blocks)
            kind = ' class="columns"' if columns else ""
            return f"<details{opened}>{summary}<div{kind}>{_blocks(block.blocks)}</div></details>\n"
        case _:
            return html_text(block)


def _examples(block: Examples) -> str:
    articles = []
    for line in block.lines:
        rows = "".join(map(_row, example_rows(block.comparison, line, "reference")))
        title = escaped(heading(block.comparison, line))
        articles.append(f"<article><h4>{title}</h4><dl>{rows}</dl></article>\n")
    return f"<section><h3>{escaped(block.title)}</h3>{''.join(articles)}</section>\n"


def _row(row: ExampleRow) -> str:
    note = f'<span class="dim">({escaped(row.note)})</span> ' if row.note else ""
    text = "".join(_span(span, not place) for place, span in enumerate(row.spans))
    text = text or f'<span class="dim">{EMPTY}</span>'
    return f'<dt>{escaped(row.label)}</dt><dd dir="auto">{note}{text}</dd>'


def _span(span: Span, first: bool) -> str:
    lead = " " if span.space and not first else ""
    if not span.differs:
        return lead + escaped(span.text)
    if span.text.strip():
        return f"{lead}<mark>{escaped(span.text)}</mark>"
    return f'{lead}<mark class="gap">{MISSING}</mark>'
