"""Lines of a test set with what systems made of them, as tables."""

from collections.abc import Sequence

from attnkit.recipe.metrics import metric_facts
from attnkit.scoring.output_comparison import TIE, ComparedLine, ComparedOutputs
from attnkit.scoring.word_marks import Span, marked, nearest_text
from attnkit.show.differences import signed
from attnkit.show.table import Cell, Column, Table
from attnkit.text import contains_answer

EMPTY = "(empty)"
MARKS_NOTE = "[words]: not in the reference at this place; [_]: words of it are missing"


def example_tables(comparison: ComparedOutputs, sort: str, count: int) -> list[Table]:
    """A table a line; the first of each group has a title.

    By difference there are so many largest gains of the second system, and as many losses; by
    another order so many lines from the first.
    """
    if sort == "difference":
        first, second = comparison.names[:2]
        title = metric_facts(comparison.metric).title
        gains = [one for one in comparison.lines if comparison.sign * one.difference > TIE]
        losses = [one for one in comparison.lines if comparison.sign * one.difference < -TIE]
        groups = {
            f"{second} gains most over {first} ({title})": gains[:count],
            f"{second} loses most against {first} ({title})": losses[::-1][:count],
        }
    else:
        words = {"score": "lowest scores first", "length": "longest references first",
                 "line": "in the order of the test set"}  # fmt: skip
        if sort == "score" and comparison.sign < 0:
            words["score"] = "highest scores first"
        groups = {words[sort]: list(comparison.lines[:count])}
    return [
        _example(comparison, line, "" if place else title)
        for title, lines in groups.items()
        for place, line in enumerate(lines)
    ]


def _example(comparison: ComparedOutputs, compared: ComparedLine, title: str) -> Table:
    """Source, references, outputs with their scores, and those contexts that need a word."""
    line, question = compared.line, comparison.contexts is not None
    number, difference = f"{'question' if question else 'line'} {line.number:,}", ""
    if len(compared.scores) > 1:
        metric = metric_facts(comparison.metric).title
        difference = f"{metric} difference {signed(compared.difference)}"
    rows = [("question" if question else "source", Cell(line.source))]
    rows += [("answer" if question else "reference", Cell(text)) for text in line.references]
    for name, score, text in zip(comparison.names, compared.scores, compared.outputs, strict=True):
        shown = _marked(marked(text, nearest_text(text, line.references)))
        rows.append((f"{name} {score:.1f}", Cell(shown if text.strip() else "", marked=True)))
    noted = _context_notes(comparison, compared)
    rows += [
        (f"context {at + 1}", Cell(f"({note}) {line.contexts[at]}")) for at, note in noted.items()
    ]
    if others := len(line.contexts) - len(noted):
        rows.append((f"+ {others}", Cell("other contexts")))
    columns = (Column(number, "left"), Column(difference, "left", wrap=True))
    cells = [
        (Cell(label, dim=True), cell if cell.text.strip() else Cell(EMPTY, dim=True))
        for label, cell in rows
    ]
    return Table(title, columns, tuple(cells))


def _context_notes(comparison: ComparedOutputs, line: ComparedLine) -> dict[int, str]:
    """What is to be said of a line's contexts, by their places from 0; most have nothing."""
    out = {}
    for place, text in enumerate(line.line.contexts):
        chosen = zip(comparison.names, line.chosen, strict=True)
        names = [name for name, context in chosen if context == place]
        notes = ["has the answer"] if contains_answer(text, line.line.references) else []
        notes += [f"decisive for {', '.join(names)}"] if names else []
        if notes:
            out[place] = "; ".join(notes)
    return out


def _marked(spans: Sequence[Span]) -> str:
    """What differs in brackets; "_" stands for words of the other text that are missing."""
    parts = (
        " " * span.space + (f"[{span.text.strip() or '_'}]" if span.differs else span.text)
        for span in spans
    )
    return "".join(parts).strip()
