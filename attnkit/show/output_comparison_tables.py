"""Aggregate differences between the outputs of several systems, as tables."""

from functools import partial
from operator import attrgetter, itemgetter

from attnkit.recipe.metrics import direction_note, metric_facts
from attnkit.scoring.output_comparison import ComparedOutputs
from attnkit.scoring.output_facts import SystemFacts, by_length, system_facts
from attnkit.show.differences import difference_cell, interval_note, scope_note, significance_note
from attnkit.show.table import Cell, Column, Table


def tables(compared: ComparedOutputs) -> list[Table]:
    """Systems on all lines, and by length of the reference."""
    lengths = by_length(compared)
    return [_systems(compared), *([_by_length(compared, lengths)] if len(lengths) > 1 else [])]


def _systems(compared: ComparedOutputs) -> Table:
    facts, found, first = metric_facts(compared.metric), system_facts(compared), compared.names[0]
    asked = compared.part.method is not None
    what = "questions" if asked else "sentences"

    def difference(one: SystemFacts) -> Cell:
        """To the first, with its interval and p where it was tested."""
        value = None if one is found[0] else one.score - found[0].score
        return difference_cell(value, one.difference, ())

    def count(name: str, one: SystemFacts) -> int | None:
        return None if one is found[0] else getattr(one, name)

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
        f"better, worse: {what} by {facts.title}{direction_note(compared.metric)}, compared with "
        f"{first}; the rest are equal",
    ]
    if tests := [(one.name, one.difference) for one in found if one.difference]:
        resamples = compared.systems[0].run.recipe.eval.bootstrap
        notes.append(significance_note(what, resamples, len(tests), "systems"))
        notes.append(interval_note(test for _, test in tests))
        notes.append(scope_note(tests, what, trained=True))
    if not asked:
        columns.insert(6, Column("repetition", attrgetter("repetition"), "{:.2f}", priority=2))
        notes.append("repetition: seq-rep-4, % of the 4-grams of an output that it had before")
    contexts, lines = compared.part.contexts, len(compared.lines)
    parts = [compared.part.split]
    parts += [f"{contexts} context{'s' * (contexts != 1)}"] if contexts else []
    parts.append(f"{lines:,} {what[:-1] if lines == 1 else what}")
    return Table.of(", ".join(parts), found, columns, notes)


def _by_length(compared: ComparedOutputs, lengths: dict[str, tuple[int, tuple[float, ...]]]) -> Table:
    """A row a system, a column a length; above, how many sentences it has."""
    rows: list[tuple[str, list[float]]] = [("sentences", [count for count, _ in lengths.values()])]
    for at, name in enumerate(compared.names):
        rows.append((name, [values[at] for _, values in lengths.values()]))
    columns = [Column("words", itemgetter(0), name="system", align="left")]
    for at, label in enumerate(lengths):
        columns.append(Column(label, lambda row, at=at: row[1][at], _number))  # type: ignore[misc]
    title = f"{metric_facts(compared.metric).title} by words in the reference"
    return Table.of(title, rows, columns)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"
