"""Tables that compare the outputs of several systems, in total and line by line."""

from functools import partial
from operator import attrgetter, itemgetter

from attnkit.recipe.metrics import direction_note, metric_facts
from attnkit.scoring.output_comparison import TIE, ComparedLine, ComparedOutputs
from attnkit.scoring.output_facts import SystemFacts, by_length, system_facts
from attnkit.show.differences import difference_cell, interval_note, scope_note, signed, significance_note
from attnkit.show.table import Cell, Column, Table
from attnkit.show.word_marks import mark_differences
from attnkit.text import contains_answer

EMPTY = "(empty)"
MARKS_NOTE = "[words]: not in the reference at this position; [_]: words of the reference are missing"


def tables(compared: ComparedOutputs) -> list[Table]:
    """Return the scores of the systems on all lines, and by length of the reference."""
    lengths = by_length(compared)
    return [_systems(compared), *([_by_length(compared, lengths)] if len(lengths) > 1 else [])]


def _systems(compared: ComparedOutputs) -> Table:
    facts, systems = metric_facts(compared.metric), system_facts(compared)
    is_qa = compared.part.method is not None
    noun = "questions" if is_qa else "sentences"

    def difference(system: SystemFacts) -> Cell:
        value = None if system is systems[0] else system.score - systems[0].score
        return difference_cell(value, system.difference, ())

    def count(name: str, system: SystemFacts) -> int | None:
        return None if system is systems[0] else getattr(system, name)

    columns = [
        Column("", attrgetter("name"), name="system", align="left"),
        Column(facts.title, attrgetter("score"), "{:.2f}", compared.metric),
        Column("difference", difference, under=True),
        *(Column(name, partial(count, name), "{:,}") for name in ("better", "worse")),
        Column("length ratio", attrgetter("length_ratio"), "{:.1f}", "length_ratio", priority=1),
        Column("empty", attrgetter("empty"), "{:,}", priority=1),
    ]
    notes = [
        *compared.notes,
        f"better, worse: {noun} with a better or worse {facts.title}{direction_note(compared.metric)} "
        f"than {compared.names[0]}; the others are equal",
    ]
    if tests := [(system.name, system.difference) for system in systems if system.difference]:
        resamples = compared.systems[0].run.recipe.eval.bootstrap
        notes.append(significance_note(noun, resamples, len(tests), "systems"))
        notes.append(interval_note(test for _, test in tests))
        notes.append(scope_note(tests, noun, trained=True))
    if not is_qa:
        columns.insert(6, Column("repetition", attrgetter("repetition"), "{:.2f}", priority=2))
        notes.append("repetition: seq-rep-4, % of the 4-grams that occur earlier in the same output")
    contexts, lines = compared.part.contexts, len(compared.lines)
    parts = [compared.part.split]
    parts += [f"{contexts} context{'s' * (contexts != 1)}"] if contexts else []
    parts.append(f"{lines:,} {noun[:-1] if lines == 1 else noun}")
    return Table.of(", ".join(parts), systems, columns, notes)


def _by_length(compared: ComparedOutputs, lengths: dict[str, tuple[int, tuple[float, ...]]]) -> Table:
    """Return a row for each system and a column for each length, below a row with the number of sentences."""
    rows: list[tuple[str | float, ...]] = [("sentences", *(count for count, _ in lengths.values()))]
    for index, name in enumerate(compared.names):
        rows.append((name, *(values[index] for _, values in lengths.values())))
    columns = [Column("words", itemgetter(0), name="system", align="left")]
    columns += [Column(label, itemgetter(index), _number) for index, label in enumerate(lengths, 1)]
    title = f"{metric_facts(compared.metric).title} by words in the reference"
    return Table.of(title, rows, columns)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"


def example_tables(comparison: ComparedOutputs, sort: str, count: int) -> list[Table]:
    """Return a table for each example line; the first table of a group has a title.

    Sorted by difference, these are the `count` largest gains of the second system and its `count` largest losses;
    otherwise the first `count` lines.
    """
    if sort == "difference":
        first, second = comparison.names[:2]
        title = metric_facts(comparison.metric).title
        gains = [line for line in comparison.lines if comparison.sign * line.difference > TIE]
        losses = [line for line in comparison.lines if comparison.sign * line.difference < -TIE]
        groups = {
            f"{second} gains most over {first} ({title})": gains[:count],
            f"{second} loses most against {first} ({title})": losses[::-1][:count],
        }
    else:
        order_titles = {
            "score": "lowest scores first",
            "length": "longest references first",
            "line": "in the order of the test set",
        }
        if sort == "score" and comparison.sign < 0:
            order_titles["score"] = "highest scores first"
        groups = {order_titles[sort]: list(comparison.lines[:count])}
    return [
        _example(comparison, line, "" if place else title)
        for title, lines in groups.items()
        for place, line in enumerate(lines)
    ]


def _example(comparison: ComparedOutputs, line: ComparedLine, title: str) -> Table:
    """Return source, references, outputs with their scores, and the contexts with the answer or decisive contexts."""
    is_qa = comparison.part.method is not None
    metric = metric_facts(comparison.metric).title
    difference = f"{metric} difference {signed(line.difference)}" if line.scores[1:] else ""
    rows = [("question" if is_qa else "source", Cell(line.source))]
    reference_name = "answer" if is_qa else "reference"
    for number, text in enumerate(line.references, 1):
        rows.append((f"{reference_name} {number}" if line.references[1:] else reference_name, Cell(text)))
    for name, score, text in zip(comparison.names, line.scores, line.outputs, strict=True):
        marked_text = mark_differences(text, line.references)
        rows.append((f"{name} {score:.1f}", Cell(marked_text if text.strip() else "", marked=True)))
    shown_contexts = 0
    for place, text in enumerate(line.contexts):
        names = [name for name, at in zip(comparison.names, line.chosen, strict=True) if at == place]
        notes = ["has the answer"] if contains_answer(text, line.references) else []
        notes += [f"decisive for {', '.join(names)}"] if names else []
        if notes:
            shown_contexts += 1
            rows.append((f"context {place + 1}", Cell(f"({'; '.join(notes)}) {text}")))
    if others := len(line.contexts) - shown_contexts:
        rows.append((f"+ {others}", Cell("other contexts")))
    columns = (
        Column(f"{'question' if is_qa else 'line'} {line.number:,}", lambda row: Cell(row[0], dim=True), align="left"),
        Column(
            difference, lambda row: row[1] if row[1].text.strip() else Cell(EMPTY, dim=True), align="left", wrap=True
        ),
    )
    return Table.of(title, rows, columns)
