"""Texts beside each other: lines of a test set with what systems made of them, and answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnkit.recipe.metrics import metric_facts
from attnkit.scoring.output_comparison import TIE, ComparedLine, ComparedOutputs
from attnkit.scoring.word_marks import Span, marked, nearest_text
from attnkit.show.differences import signed
from attnkit.show.html_document import escaped
from attnkit.text import contains_answer, one_line, safe_text

MISSING = "_"
"""Stands for words of the other text that an output lacks."""
EMPTY = "(empty)"
DIFFERENT = "bold underline yellow"
NARROW = 60  # cells below which texts stand under their labels
LONGEST_LABEL = 24


class ExampleGroup(NamedTuple):
    """Lines under one heading."""

    title: str
    lines: Sequence[ComparedLine]


def groups(comparison: ComparedOutputs, sort: str, count: int) -> list[ExampleGroup]:
    """The examples to show: by difference, so many largest gains and losses of the second system.

    By another order, so many lines from the first.
    """
    if sort != "difference":
        words = {"score": "lowest scores first", "length": "longest references first",
                 "line": "in the order of the test set"}  # fmt: skip
        if sort == "score" and comparison.sign < 0:
            words["score"] = "highest scores first"
        return [ExampleGroup(words[sort], comparison.lines[:count])]
    first, second = comparison.names[:2]
    title = metric_facts(comparison.metric).title
    gains = [one for one in comparison.lines if comparison.sign * one.difference > TIE]
    losses = [one for one in comparison.lines if comparison.sign * one.difference < -TIE]
    out = [
        ExampleGroup(f"{second} gains most over {first} ({title})", gains[:count]),
        ExampleGroup(f"{second} loses most against {first} ({title})", losses[::-1][:count]),
    ]
    return [group for group in out if group.lines]


def context_notes(comparison: ComparedOutputs, line: ComparedLine) -> dict[int, str]:
    """What is to be said of a line's contexts, by their places from 0; most have nothing."""
    out = {}
    for place, text in enumerate(line.line.contexts):
        names = [
            name
            for name, chosen in zip(comparison.names, line.chosen, strict=True)
            if chosen == place
        ]
        notes = ["has the answer"] if contains_answer(text, line.line.references) else []
        notes += [f"decisive for {', '.join(names)}"] if names else []
        if notes:
            out[place] = "; ".join(notes)
    return out


class ExampleRow(NamedTuple):
    """What stands beside one label of a line."""

    label: str
    spans: Sequence[Span]
    """None of an empty text."""
    note: str = ""
    """Of a context."""


def heading(comparison: ComparedOutputs, line: ComparedLine) -> str:
    """Which line it is, and the difference of the first two systems."""
    number = f"{'question' if comparison.contexts is not None else 'line'} {line.line.number:,}"
    if len(line.scores) == 1:
        return number
    title = metric_facts(comparison.metric).title
    return f"{number}   {title} difference {signed(line.difference)}"


def example_rows(comparison: ComparedOutputs, line: ComparedLine) -> list[ExampleRow]:
    """Source, references, outputs with their scores, and those contexts that need a word."""
    question = comparison.contexts is not None
    several = len(line.line.references) > 1
    rows = [ExampleRow("question" if question else "source", _whole(line.line.source))]
    for number, text in enumerate(line.line.references, 1):
        word = "answer" if question else "reference"
        rows.append(ExampleRow(f"{word} {number}" if several else word, _whole(text)))
    for name, score, text in zip(comparison.names, line.scores, line.outputs, strict=True):
        spans = marked(text, nearest_text(text, line.line.references))
        rows.append(ExampleRow(f"{name} {score:.1f}", spans if text.strip() else ()))
    for place, note in context_notes(comparison, line).items():
        text = line.line.contexts[place]
        rows.append(ExampleRow(f"context {place + 1}", _whole(text), note))
    return rows


def _whole(text: str) -> Sequence[Span]:
    return [Span(text, False, False)] if text.strip() else ()


def marks_note(word: str, missing: str) -> str:
    """What the marks mean; `word` and `missing`: how they look."""
    return f"{word}: not in the reference at this place; {missing}: words of it are missing"


@dataclass(frozen=True, eq=False)
class OutputExamples:
    """A rich renderable: one block a line of the test set."""

    comparison: ComparedOutputs
    groups: Sequence[ExampleGroup]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for group in self.groups:
            yield Text(one_line(group.title), style="bold", overflow="fold")
            yield ""
            for line in group.lines:
                yield from self._example(line, options)
                yield ""
        if any(group.lines for group in self.groups):
            note = marks_note("[words]", f"[{MISSING}]")
            yield Text(one_line(note), style="dim", overflow="fold")
            yield ""

    def _example(self, line: ComparedLine, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(heading(self.comparison, line), style="bold cyan", overflow="fold")
        rows = []
        for row in example_rows(self.comparison, line):
            shown = marked_text(row.spans) if row.spans else Text(EMPTY, style="dim")
            note = [(f"({row.note}) ", "dim")] if row.note else []
            rows.append((row.label, Text.assemble(*note, shown, overflow="fold")))
        noted = len(context_notes(self.comparison, line))
        if others := len(line.line.contexts) - noted:
            word = "other contexts" if noted else "contexts"
            rows.append((f"+ {others}", Text(word, style="dim")))
        for part in labelled(rows, options, NARROW, "dim"):
            yield Padding(part, (0, 0, 0, 2)) if isinstance(part, Table) else part


def example_html(comparison: ComparedOutputs, line: ComparedLine) -> str:
    """A line as an article."""
    body = "".join(map(_row_html, example_rows(comparison, line)))
    return f"<article><h4>{escaped(heading(comparison, line))}</h4><dl>{body}</dl></article>\n"


def _row_html(row: ExampleRow) -> str:
    note = f'<span class="dim">({escaped(row.note)})</span> ' if row.note else ""
    text = "".join(_span_html(span, not place) for place, span in enumerate(row.spans))
    text = text or f'<span class="dim">{EMPTY}</span>'
    return f'<dt>{escaped(row.label)}</dt><dd dir="auto">{note}{text}</dd>'


def _span_html(span: Span, first: bool) -> str:
    lead = " " if span.space and not first else ""
    if not span.differs:
        return lead + escaped(span.text)
    if span.text.strip():
        return f"{lead}<mark>{escaped(span.text)}</mark>"
    return f'{lead}<mark class="gap">{MISSING}</mark>'


def marked_text(spans: Sequence[Span]) -> Text:
    """Spans as text: what differs in colour, underlined and in brackets."""
    out = Text(overflow="fold")
    for number, span in enumerate(spans):
        if span.space and number:
            out.append(" ")
        if not span.differs:
            out.append(one_line(span.text))
            continue
        out.append("[", style="yellow")
        out.append(one_line(span.text) if span.text else MISSING, style=DIFFERENT)
        out.append("]", style="yellow")
    return out


def labelled(
    rows: Sequence[tuple[str, Text]], options: ConsoleOptions, narrow: int, style: str
) -> Iterator[RenderableType]:
    """Labels beside their texts, or above them on a narrow screen or where one is long."""
    labels = [one_line(label) for label, _ in rows]
    if options.max_width < narrow or max(map(cell_len, labels), default=0) > LONGEST_LABEL:
        for label, (_, text) in zip(labels, rows, strict=True):
            yield Text(label, style=style, overflow="fold")
            yield Padding(text, (0, 0, 0, 2))
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style=style)
    grid.add_column(overflow="fold")
    for label, (_, text) in zip(labels, rows, strict=True):
        grid.add_row(label, text)
    yield grid


class MethodAnswer(NamedTuple):
    """The answer of one method."""

    method: str
    answer: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class AnswerList:
    """A rich renderable: what several methods answered to one prompt, folded and never cut."""

    answers: Sequence[MethodAnswer]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = []
        for one in self.answers:
            parts = [Text(safe_text(one.answer) or "(nothing)", overflow="fold")]
            parts += [Text(safe_text(note), style="dim", overflow="fold") for note in one.notes]
            rows.append((one.method, Text("\n", overflow="fold").join(parts)))
        yield from labelled(rows, options, 50, "bold")
