"""A comparison of outputs as one HTML file: tables, and every sentence to sort and to search."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnkit.recipe.metrics import direction_note, metric_facts
from attnkit.scoring.output_comparison import ComparedLine, OutputComparison, Sort
from attnkit.scoring.word_marks import Span
from attnkit.show import table_formats
from attnkit.show.differences import signed
from attnkit.show.html_document import document
from attnkit.show.output_comparison_tables import tables
from attnkit.show.output_examples import Against, context_notes, mark_outputs
from attnkit.text import safe_text

LARGEST = 4_000_000
"""Characters of all sentences together, at most; those that differ least are left out."""

ORDERS: dict[Sort, int] = {"difference": 0, "score": 2, "length": 3, "line": 4}
"""Sort -> its place among the page's orders (ORDERS in page.js)."""


class ComparisonPage(NamedTuple):
    """The file, and how many sentences it leaves out."""

    content: bytes
    left_out: int


def page(
    comparison: OutputComparison,
    against: Against,
    *,
    sort: Sort = "difference",
    command: str = "",
    most: int | None = None,
) -> ComparisonPage:
    """The page of a comparison; the same one gives the same bytes.

    Args:
        comparison: what is shown.
        against: what differing words are marked against.
        sort: the order in which sentences stand at first.
        command: that made the page, for its foot.
        most: sentences that it shows, at most; those that differ most.
    """
    by_difference = sorted(comparison.lines, key=lambda one: (-_spread(one), one.line.number))
    records: dict[int, dict[str, Any]] = {}
    room = LARGEST
    for one in by_difference[:most]:
        record = _record(comparison, one, against)
        room -= len(json.dumps(record))
        if room < 0 and records:
            break
        records[one.line.number] = record
    left_out = len(comparison.lines) - len(records)
    names = list(map(safe_text, comparison.names))
    title = metric_facts(comparison.metric).title
    data = {
        "names": names,
        "runs": [safe_text(one.run) for one in comparison.systems],
        "metric": title + direction_note(comparison.metric),
        "sign": comparison.sign,
        "questions": comparison.contexts is not None,
        "against": "the reference" if against == "reference" else f"the output of {names[0]}",
        "order": ORDERS[sort],
        "lines": [records[number] for number in sorted(records)],
        "left_out": left_out,
        "command": command,
    }
    content = document(
        Path(__file__).parent,
        f"Outputs compared: {', '.join(names)}",
        data,
        scripts=("../frame.js", "page.js"),
        styles=("../tables.css", "page.css"),
        parts={"tables": "".join(map(table_formats.html_text, tables(comparison)))},
    )
    return ComparisonPage(content, left_out)


def _spread(one: ComparedLine) -> float:
    return max(one.scores) - min(one.scores)


def _record(comparison: OutputComparison, one: ComparedLine, against: Against) -> dict[str, Any]:
    notes = context_notes(comparison, one)
    return {
        "line": one.line.number,
        "length": one.length,
        "source": safe_text(one.line.source),
        "references": [safe_text(text) for text in one.line.references],
        "difference": signed(one.difference),
        "scores": [round(score, 2) for score in one.scores],
        "outputs": [_spans(spans) for spans in mark_outputs(one, against)],
        "contexts": [
            [safe_text(text), notes.get(place, "")]
            for place, text in enumerate(one.line.contexts)
        ],
    }  # fmt: skip


def _spans(spans: Sequence[Span]) -> list[list[Any]]:
    """Text and whether it differs; the space before it is part of it."""
    return [
        [(" " if span.space and number else "") + safe_text(span.text), int(span.differs)]
        for number, span in enumerate(spans)
    ]
