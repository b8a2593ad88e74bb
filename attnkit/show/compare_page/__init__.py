"""A comparison of outputs as one HTML file: tables, and every sentence to sort and to search."""

from pathlib import Path
from typing import NamedTuple

from attnkit.recipe.metrics import direction_note, metric_facts
from attnkit.scoring.output_comparison import ComparedLine, OutputComparison, Sort
from attnkit.show import table_formats
from attnkit.show.html_document import document, escaped
from attnkit.show.output_comparison_tables import tables
from attnkit.show.output_examples import MARKS_HTML, Against, example_html, marks_note
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
    articles: dict[int, str] = {}
    room = LARGEST
    for one in by_difference[:most]:
        article = example_html(comparison, one, against, whole=True)
        room -= len(article)
        if room < 0 and articles:
            break
        articles[one.line.number] = article
    left_out = len(comparison.lines) - len(articles)
    names = list(map(safe_text, comparison.names))
    title = metric_facts(comparison.metric).title + direction_note(comparison.metric)
    other = "the reference" if against == "reference" else f"the output of {escaped(names[0])}"
    legend = marks_note(*MARKS_HTML, other)
    if left_out:
        legend += f". {left_out:,} that differ less are left out."
    runs = ", ".join(one.run for one in comparison.systems)
    parts = {
        "heading": f"Sentences are judged by {escaped(title)}.",
        "examples": "Questions" if comparison.contexts is not None else "Sentences",
        "tables": "".join(map(table_formats.html_text, tables(comparison))),
        "legend": legend,
        "lines": "".join(articles[number] for number in sorted(articles)),
        "runs": f"Runs: {escaped(runs)}",
        "command": f"Made by: {escaped(command)}" if command else "",
    }
    content = document(
        Path(__file__).parent,
        f"Outputs compared: {', '.join(names)}",
        {"names": names[:2], "order": ORDERS[sort]},
        scripts=("../frame.js", "page.js"),
        styles=("../tables.css", "page.css"),
        parts=parts,
    )
    return ComparisonPage(content, left_out)


def _spread(one: ComparedLine) -> float:
    return max(one.scores) - min(one.scores)
