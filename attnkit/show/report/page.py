"""A report as one HTML file that needs nothing else: no network, no other file."""

import base64
from collections.abc import Sequence
from pathlib import Path

from attnkit.show.html_document import document, escaped
from attnkit.show.output_examples import MARKS_HTML, example_html, marks_note
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
            return f"<p>{marks_note(*MARKS_HTML)}</p>\n"
        case Examples():
            lines = (example_html(block.comparison, line, "reference") for line in block.lines)
            return f"<section><h3>{escaped(block.title)}</h3>{''.join(lines)}</section>\n"
        case Fold():
            opened = " open" if block.open else ""
            summary = f"<summary>{escaped(block.title)}</summary>"
            columns = any(isinstance(one, Examples) for one in block.blocks)
            kind = ' class="columns"' if columns else ""
            return f"<details{opened}>{summary}<div{kind}>{_blocks(block.blocks)}</div></details>\n"
        case _:
            return html_text(block)
