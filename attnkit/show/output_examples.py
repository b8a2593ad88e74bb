"""Lines of a test set with what systems made of them, as tables."""

from attnkit.recipe.metrics import metric_facts
from attnkit.scoring.output_comparison import TIE, ComparedLine, ComparedOutputs
from attnkit.show.differences import signed
from attnkit.show.table import Cell, Column, Table
from attnkit.show.word_marks import marked
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
        words = {
            "score": "lowest scores first",
            "length": "longest references first",
            "line": "in the order of the test set",
        }
        if sort == "score" and comparison.sign < 0:
            words["score"] = "highest scores first"
        groups = {words[sort]: list(comparison.lines[:count])}
    return [
        _example(comparison, line, "" if place else title)
        for title, lines in groups.items()
        for place, line in enumerate(lines)
    ]


def _example(comparison: ComparedOutputs, line: ComparedLine, title: str) -> Table:
    """Source, references, outputs with their scores, and those contexts that need a word."""
    asked = comparison.part.method is not None
    metric = metric_facts(comparison.metric).title
    difference = f"{metric} difference {signed(line.difference)}" if line.scores[1:] else ""
    rows = [("question" if asked else "source", Cell(line.source))]
    given = "answer" if asked else "reference"
    for number, text in enumerate(line.references, 1):
        rows.append((f"{given} {number}" if line.references[1:] else given, Cell(text)))
    for name, score, text in zip(comparison.names, line.scores, line.outputs, strict=True):
        shown = marked(text, line.references)
        rows.append((f"{name} {score:.1f}", Cell(shown if text.strip() else "", marked=True)))
    noted = 0
    for place, text in enumerate(line.contexts):
        names = [name for name, at in zip(comparison.names, line.chosen, strict=True) if at == place]
        notes = ["has the answer"] if contains_answer(text, line.references) else []
        notes += [f"decisive for {', '.join(names)}"] if names else []
        if notes:
            noted += 1
            rows.append((f"context {place + 1}", Cell(f"({'; '.join(notes)}) {text}")))
    if others := len(line.contexts) - noted:
        rows.append((f"+ {others}", Cell("other contexts")))
    columns = (
        Column(f"{'question' if asked else 'line'} {line.number:,}", lambda row: Cell(row[0], dim=True), align="left"),
        Column(
            difference, lambda row: row[1] if row[1].text.strip() else Cell(EMPTY, dim=True), align="left", wrap=True
        ),
    )
    return Table.of(title, rows, columns)
