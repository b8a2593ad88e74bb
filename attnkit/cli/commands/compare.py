"""`attnkit compare`: the outputs of scored runs side by side, and their differences."""

from collections import Counter
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attnkit.cli import console, options, output
from attnkit.cli.options import argument, value

if TYPE_CHECKING:
    from attnkit.runs import Run

EXAMPLES = 3
"""Default number of examples with --format table."""


def compare(
    runs: list[Path] = argument("RUN", "A scored run, or a folder of them; the first is the baseline."),
    *,
    split: str | None = value("S", "Split to compare on. [default: the first that all are scored on]"),
    metric: str | None = value("M", "Metric for sentences. [default: chrf, bleu, answer-f1 or another stored metric]"),
    sort: Literal["difference", "score", "length", "line"] = value(
        "ORDER", "Order of examples: difference (of the first two runs), score, length or line.", default="difference"
    ),
    number: int | None = value(
        "N", f"Number of examples, by difference of either sign. [default: {EXAMPLES}; in JSON lines all]", "-n", min=1
    ),
    method: list[str] | None = value(
        "NAME",
        "For question answering: compare this method. Repeatable. [default: all methods of "
        "a single run, the first method of several runs]",
    ),
    format: Literal["table", "markdown", "latex", "csv", "json", "jsonl"] = value(
        "FORMAT",
        "table; markdown, latex or json: the tables without examples; csv: the first table; "
        "jsonl: an object for each sentence.",
        default="table",
    ),
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
) -> None:
    """Show how the outputs of scored runs differ: by sentence, and by length.

    Reads what `attnkit eval` saved. Examples are the sentences on which the first two runs differ
    most, by a sentence-level metric; [brackets] mark the words that differ from the reference.

      attnkit compare runs/quickstart/scaled-dot runs/quickstart/linear
      attnkit compare RUN RUN --metric bleu --sort length -n 10
      attnkit compare RUN RUN --format jsonl
    """
    from attnkit.scoring.output_comparison import compare_outputs
    from attnkit.show.output_comparison_tables import MARKS_NOTE, example_tables, tables

    comparison = compare_outputs(
        _runs(runs), split, metric, methods=method or (), data_dir=data_dir, offline=offline
    ).sorted(sort)
    if format == "jsonl":
        for line in comparison.lines[:number]:
            output.write_json(comparison.record(line), indent=None)
        return
    shown = tables(comparison)
    if format == "table":
        examples = example_tables(comparison, sort, number or EXAMPLES)
        if examples:
            examples[-1] = replace(examples[-1], notes=(MARKS_NOTE,))
        else:
            first, second = comparison.names[:2]
            console.say(
                f"{first} and {second} have equal {comparison.metric} on every line: choose "
                "another --metric, or --sort line"
            )
        shown = [*examples, *shown]
    if format == "json":
        records = [{"title": t.title, "rows": t.records(), "notes": t.notes} for t in shown]
        output.write_json({"split": comparison.part.split, "metric": comparison.metric, "tables": records})
    else:
        output.write_tables(shown[:1] if format == "csv" else shown, format)


def _runs(folders: list[Path]) -> "list[Run]":
    """Return the distinct runs in folders: the first run of each variant, then the second ones, and so on.

    The first two runs, whose examples are compared, are thus of different variants if there are several.
    """
    from attnkit.runs import find_runs

    found: dict[Path, Run] = {}
    for folder in folders:
        runs = find_runs([folder], note=console.warn)
        for run in sorted(runs, key=lambda run: (run.name, run.variant != run.manifest.baseline)):
            found.setdefault(run.path.resolve(), run)
    counts = Counter[tuple[str, str]]()
    numbered = []
    for run in found.values():
        numbered.append((counts[run.name, run.variant], run))
        counts[run.name, run.variant] += 1
    return [run for _, run in sorted(numbered, key=itemgetter(0))]
