"""A report as Markdown with a folder of drawings beside it, for the appendix of a paper."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from attnkit.scoring.word_marks import Span
from attnkit.show.output_examples import (
    EMPTY,
    MISSING,
    ExampleRow,
    example_rows,
    heading,
    marks_note,
)
from attnkit.show.report.blocks import Block, Examples, Figure, Fold, Marks, Note, Report
from attnkit.show.table_formats import markdown as markdown_table
from attnkit.show.table_formats import markdown_text


class MarkdownReport(NamedTuple):
    """The text, and the files of its drawings by their names in the folder."""

    text: str
    drawings: dict[str, bytes]


def markdown(report: Report, folder: str) -> MarkdownReport:
    """The report for a file beside which `folder` holds the drawings."""
    writer = _Writer(folder)
    parts = [f"# {markdown_text(report.title)}", markdown_text(report.facts)]
    for section in report.sections:
        parts.append(f"## {markdown_text(section.title)}")
        parts += writer.blocks(section.blocks, 3)
    parts.append(f"*{markdown_text(report.made_by)}*")
    return MarkdownReport("\n\n".join(part.rstrip("\n") for part in parts) + "\n", writer.drawings)


class _Writer:
    """Writes blocks, and gathers their drawings."""

    def __init__(self, folder: str) -> None:
        self.folder = folder.replace(" ", "%20")
        self.drawings: dict[str, bytes] = {}

    def blocks(self, blocks: Sequence[Block], level: int) -> Iterator[str]:
        """Each block as text, its own headings of this level."""
        for block in blocks:
            match block:
                case Note():
                    yield markdown_text(block.text)
                case Figure():
                    yield from self._figure(block)
                case Marks():
                    yield marks_note("<b>bold</b>", f"<b>\\{MISSING}</b>")
                case Examples():
                    yield from _examples(block, level)
                case Fold():
                    yield f"{'#' * level} {markdown_text(block.title)}"
                    yield from self.blocks(block.blocks, level + 1)
                case _:
                    yield markdown_table(block)

    def _figure(self, figure: Figure) -> Iterator[str]:
        for number, one in enumerate(figure.drawings, 1):
            several = f"-{number}" if len(figure.drawings) > 1 else ""
            name = f"{figure.name}{several}.svg"
            self.drawings[name] = one.svg
            yield f"![{markdown_text(one.title)}]({self.folder}/{name})"
        if figure.caption:
            yield markdown_text(figure.caption)


def _examples(block: Examples, level: int) -> Iterator[str]:
    yield f"{'#' * level} {markdown_text(block.title)}"
    for line in block.lines:
        yield f"**{markdown_text(heading(block.comparison, line))}**"
        rows = [_row(row) for row in example_rows(block.comparison, line, "reference")]
        yield "\n".join(["| | |", "| :--- | :--- |", *rows])


def _row(row: ExampleRow) -> str:
    note = f"*({markdown_text(row.note)})* " if row.note else ""
    text = "".join(_span(span, not place) for place, span in enumerate(row.spans))
    return f"| {markdown_text(row.label)} | {note}{text or EMPTY} |"


def _span(span: Span, first: bool) -> str:
    lead = " " if span.space and not first else ""
    text = markdown_text(span.text or MISSING)
    return lead + (f"<b>{text}</b>" if span.differs else text)
