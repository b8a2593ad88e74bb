"""Aggregate differences between the outputs of several systems, as tables."""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter, itemgetter

from attnkit.recipe.metrics import direction_note, metric_facts
from attnkit.scoring.output_comparison import (
    Bucket,
    ComparedOutputs,
    SystemFacts,
    by_length,
    system_facts,
)
from attnkit.show.comparison_tables import difference_cell
from attnkit.show.differences import (
    interval_note,
    scope_note,
    significance_note,
)
from attnkit.show.table import Cell, Field, Table


def tables(compared: ComparedOutputs) -> list[Table]:
    """Systems on all lines, and by length of the reference."""
    lengths = by_length(compared)
    return [_systems(compared), *([_by_length(compared, lengths)] if len(lengths) > 1 else [])]


def _systems(compared: ComparedOutputs) -> Table:
    facts, found = metric_facts(compared.metric), system_facts(compared)
    first, evaluated = found[0], compared.evaluated
    what = "sentences" if compared.contexts is None else "questions"

    def difference(one: SystemFacts) -> Cell:
        """To the first, with its interval and p where it was tested."""
        value = None if one is first else one.score - first.score
        return difference_cell(value, one.difference, ())

    def count(name: str, one: SystemFacts) -> int | None:
        return None if one is first else getattr(one, name)

    fields = [
        Field("", attrgetter("name"), name="system", align="left"),
        Field(facts.title, attrgetter("score"), "{:.2f}", compared.metric),
        Field("difference", lambda one: one, under=True),
        *(Field(name, partial(count, name), "{:,}") for name in ("better", "worse")),
        Field("length ratio", attrgetter("length_ratio"), "{:.1f}", "length_ratio", priority=1),
        Field("repetition", attrgetter("repetition"), "{:.2f}", priority=2),
        Field("empty", attrgetter("empty"), "{:,}", priority=1),
    ]
    notes = [
        *evaluated.notes,
        f"better, worse: {what} by {facts.title}{direction_note(compared.metric)}, compared with "
        f"{first.name}; the rest are equal",
    ]
    if tests := [(one.name, one.difference) for one in found if one.difference]:
        resamples = evaluated.systems[0].run.recipe.eval.bootstrap
        notes.append(significance_note(what, resamples, len(tests), "systems"))
        notes.append(interval_note(test for _, test in tests))
        notes.append(scope_note(tests, what, trained=True))
    if compared.contexts is None:
        notes.append("repetition: seq-rep-4, % of the 4-grams of an output that it had before")
    else:
        fields = [one for one in fields if one.title != "repetition"]
    rows = tuple(
        tuple(difference(one) if f.under else f.cell(one) for f in fields) for one in found
    )
    return Table(_heading(compared, what), tuple(f.column for f in fields), rows, tuple(notes))


def _heading(compared: ComparedOutputs, what: str) -> str:
    """Split, contexts, and how many sentences."""
    parts, count = [compared.evaluated.split], len(compared.lines)
    if number := compared.contexts:
        parts.append(f"{number} context" + "s" * (number != 1))
    return ", ".join([*parts, f"{count:,} {what[:-1] if count == 1 else what}"])


def _by_length(compared: ComparedOutputs, buckets: Sequence[Bucket]) -> Table:
    """A row a system, a column a bucket; above, how many sentences it has."""
    rows: list[tuple[str, list[float]]] = [("sentences", [one.count for one in buckets])]
    rows += [(name, [one.values[at] for one in buckets]) for at, name in enumerate(compared.names)]
    fields = [Field("words", itemgetter(0), name="system", align="left")]
    for at, one in enumerate(buckets):
        fields.append(Field(one.label, lambda row, at=at: row[1][at], _number))  # type: ignore[misc]
    return Table.of(
        f"{metric_facts(compared.metric).title} by words in the reference", rows, fields
    )


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"
