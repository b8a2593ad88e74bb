"""Aggregate differences between the outputs of several systems, as tables."""

from collections.abc import Sequence

from attnkit.recipe.metrics import direction_note, metric_facts
from attnkit.scoring.output_comparison import Bucket, OutputComparison, SystemFacts
from attnkit.show.differences import (
    difference_text,
    interval_note,
    scope_note,
    signed,
    significance_note,
)
from attnkit.show.table import NONE, Cell, Column, Table

FEW = 3
"""Systems whose differences fit beside their values."""


def tables(comparison: OutputComparison) -> list[Table]:
    """Systems on all lines, by length of the reference, by frequency of words.

    Only systems on all lines of the split are tested: a selection is found by searching.
    """
    title = metric_facts(comparison.metric).title
    out = [_systems(comparison)]
    if len(comparison.by_length) > 1:
        out.append(
            _buckets(
                f"{title} by words in the reference", "words", "sentences", comparison.by_length,
                comparison,
            )
        )  # fmt: skip
    if comparison.by_frequency:
        notes = []
        if any(len(one.line.references) > 1 for one in comparison.lines):
            notes.append("words are compared with those of the first reference")
        out.append(
            _buckets(
                f"F1 of words by frequency in the {comparison.frequencies}", "frequency", "words",
                comparison.by_frequency, comparison, notes,
            )
        )  # fmt: skip
    return out


def _heading(comparison: OutputComparison) -> str:
    """What is compared: split, contexts, how many sentences of how many."""
    shown, total = len(comparison.lines), comparison.total
    what = ("question" if comparison.contexts else "sentence") + "s" * (total != 1)
    parts = [comparison.split]
    if comparison.contexts:
        parts.append(f"{comparison.contexts} context" + "s" * (comparison.contexts != 1))
    parts.append(f"{total:,} {what}" if shown == total else f"{shown:,} of {total:,} {what}")
    return ", ".join(parts)


def _systems(comparison: OutputComparison) -> Table:
    facts = metric_facts(comparison.metric)
    first = comparison.systems[0]
    answers = comparison.contexts is not None
    columns = [
        Column("", "left"), Column(facts.title), Column("difference", under=True),
        Column("better"), Column("worse"), Column("length ratio", priority=1),
        *(() if answers else (Column("repetition", priority=2),)), Column("empty", priority=1),
    ]  # fmt: skip
    rows = []
    for one in comparison.systems:
        base = one is first
        row = [
            Cell(one.name, {"system": one.name}),
            Cell(f"{one.score:.2f}", {comparison.metric: one.score}),
            _tested(one, first),
            _count("better", one.better, base), _count("worse", one.worse, base),
            Cell(f"{one.length_ratio:.1f}", {"length_ratio": one.length_ratio}),
            *(() if answers else (Cell(f"{one.repetition:.2f}", {"repetition": one.repetition}),)),
            Cell(f"{one.empty:,}", {"empty": one.empty}),
        ]  # fmt: skip
        rows.append(tuple(row))
    what = "questions" if answers else "sentences"
    notes = [
        *comparison.notes,
        f"better, worse: {what} by {facts.title}{direction_note(comparison.metric)}, compared with "
        f"{first.name}; the rest are equal",
        *_significance(comparison, what),
    ]
    if not answers:
        notes.append("repetition: seq-rep-4, % of the 4-grams of an output that it had before")
    return Table(_heading(comparison), tuple(columns), tuple(rows), tuple(notes))


def _tested(one: SystemFacts, first: SystemFacts) -> Cell:
    """The difference of a system to the first, with its interval and p where it was tested."""
    if one.difference is None:
        return _difference("difference", one.score, first.score, one is first)
    found = one.difference
    low, high = found.interval or (None, None)
    fields = {"difference": found.value, "low": low, "high": high, "p": found.p}
    text = difference_text(found.value, found)
    return Cell(text, fields | {"p_corrected": found.p_holm})


def _significance(comparison: OutputComparison, what: str) -> list[str]:
    """What the tests of the systems cover."""
    tests = [(one.name, one.difference) for one in comparison.systems if one.difference]
    if not tests:
        return ["no interval and no p of a selection: attnkit eval has them of the whole split"]
    about = significance_note(what, comparison.resamples, len(tests), "systems")
    covered = interval_note(test for _, test in tests)
    return [about, covered, scope_note(tests, what, trained=True)]


def _count(name: str, number: int, base: bool) -> Cell:
    return Cell(NONE if base else f"{number:,}", {name: None if base else number})


def _difference(name: str, value: float, base: float, first: bool = False) -> Cell:
    difference = value - base
    return Cell(NONE if first else signed(difference), {name: None if first else difference})


def _buckets(
    title: str, kind: str, what: str, buckets: Sequence[Bucket], comparison: OutputComparison,
    notes: Sequence[str] = (),
) -> Table:  # fmt: skip
    """A row a bucket, with each system's value and difference; of many systems a row a system."""
    names = [one.name for one in comparison.systems]
    if len(names) > FEW:
        columns = [Column("", "left"), *(Column(bucket.label) for bucket in buckets)]
        counts = [Cell(what, {"system": what}, dim=True)]
        counts += [Cell(f"{one.count:,}", {one.label: one.count}, dim=True) for one in buckets]
        rows = [
            [Cell(name, {"system": name}), *(_value(b.label, b.values[at]) for b in buckets)]
            for at, name in enumerate(names)
        ]
        return Table(title, tuple(columns), tuple(map(tuple, (counts, *rows))), tuple(notes))
    columns = [Column(kind, "left"), Column(what), Column(names[0])]
    for name in names[1:]:
        columns += [Column(name), Column("difference", under=True)]
    rows = []
    for one in buckets:
        row = [
            Cell(one.label, {kind: one.label}),
            Cell(f"{one.count:,}", {what: one.count}, dim=True),
        ]
        row.append(_value(names[0], one.values[0]))
        for name, value in zip(names[1:], one.values[1:], strict=True):
            row.append(_value(name, value))
            row.append(_difference(f"{name}_difference", value, one.values[0]))
        rows.append(row)
    return Table(title, tuple(columns), tuple(map(tuple, rows)), tuple(notes))


def _value(name: str, value: float) -> Cell:
    return Cell(f"{value:.1f}", {name: value})
