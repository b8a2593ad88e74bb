"""Comparisons by number of contexts or by length, and any comparison as a screen shows it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from attnkit.recipe import corpus_cards
from attnkit.recipe.metrics import metric_facts
from attnkit.scoring.results import Comparison, ScoreRow
from attnkit.show.comparison_notes import (
    condition_notes,
    joined,
    metrics_of,
    run_notes,
    signature_notes,
    tests_of,
    trained,
    tuning_notes,
)
from attnkit.show.comparison_tables import AXES, IN_TITLE, Key, ScoresByKey, comparison_table
from attnkit.show.differences import few_items_note, scope_note, stars
from attnkit.show.table import NONE, Cell, Column, Table


def tables(comparison: Comparison) -> list[Table]:
    """Any comparison as a screen shows it: along an axis a table for each split, else one.

    The notes are below the last.
    """
    if not axis_of(comparison.rows):
        return [comparison_table(comparison)]
    rows, scores = comparison.rows, ScoresByKey(comparison)
    splits = dict.fromkeys(row.split for row in rows)
    of_splits = [_axis_rows([row for row in rows if row.split == s], scores) for s in splits]
    return [*of_splits[:-1], _with_notes(of_splits[-1], comparison)]


def axis_of(rows: Iterable[ScoreRow]) -> str:
    """Along what a comparison goes: a word of AXES, or ""."""
    return next((name for name in AXES if any(getattr(row, name) is not None for row in rows)), "")


def axis_table(comparison: Comparison) -> Table:
    """One row a split, a metric and a system, one column a number of contexts, or a length.

    Args:
        comparison: one whose rows have contexts or lengths.

    Scores are means over seeds.  A star marks a difference to the baseline at the same place.  The
    numbers for programs are those of `comparison_table`.
    """
    table = _axis_rows(comparison.rows, ScoresByKey(comparison))
    return _with_notes(table, comparison)


def _axis_rows(rows: Sequence[ScoreRow], scores: ScoresByKey) -> Table:
    """The table of some rows, without notes."""
    axis, keys = axis_of(rows), [Key.of(row) for row in rows]
    places = sorted({key.place or 0 for key in keys})
    untrained = not trained(rows)  # models and not variants of a recipe
    always = {"method"} if axis == "contexts" else {"variant"}
    always |= {"variant"} if untrained else set()
    seen = [list(dict.fromkeys(names)) for names in zip(*keys, strict=True)][:-1]
    shown = [
        at for at, names in enumerate(seen) if Key._fields[at] in always or len(names) > 1
    ]  # fmt: skip
    titles = [Key._fields[at] for at in shown]
    titles = ["model" if title == "variant" and untrained else title for title in titles]
    column = titles.index("split") + 1 if "split" in titles else 0
    titles.insert(column, "metric")
    columns = [Column(title, "left", key=True) for title in titles]
    columns += [Column(str(at)) for at in places]
    systems = [
        one
        for one in product(*seen)
        if any(Key._make([*one, at]) in scores.groups for at in places)
    ]
    digits = 1 if axis == "contexts" else 2  # numbers of contexts are many
    body = []
    for split, metric in product(seen[0], metrics_of(rows)):
        for system in (one for one in systems if one[0] == split):
            cells = [_axis_cell(Key._make([*system, at]), metric, scores, digits) for at in places]
            if any(cell.text != NONE for cell in cells):
                names = [str(system[at]) for at in shown]
                names.insert(column, metric_facts(metric).title)
                body.append((*map(Cell, names), *cells))
    recipes, splits = (joined(getattr(row, name) for row in rows) for name in IN_TITLE)
    return Table(f"{recipes}: {splits}, by {_along(axis, rows)}", tuple(columns), tuple(body))


def _along(axis: str, rows: Sequence[ScoreRow]) -> str:
    """What the columns of a table are numbers of."""
    if axis == "contexts":
        return "number of contexts"
    made = corpus_cards.row_length(rows[0].system.corpus)
    return f"length in {made.unit}" if made else "length of the text in tokens"


def _axis_cell(key: Key, metric: str, scores: ScoresByKey, digits: int) -> Cell:
    value = scores.mean(key, metric)
    if value is None:
        return Cell(NONE)
    found = scores.differences.get((key, metric))
    mark = stars(found.tested.p_holm) if found and found.tested else ""
    # no space before the stars: columns are many
    return Cell(f"{value:.{digits}f}{mark.strip()}", {}, scores.best(key, metric, digits))


def _with_notes(table: Table, comparison: Comparison) -> Table:
    """The table with the notes below it; the brief ones are about marks, seeds and the columns."""
    rows, asked = comparison.rows, axis_of(comparison.rows) == "contexts"
    first = [row for row in rows if asked or row.length == rows[0].length]
    columns = [] if asked else [_length_note(rows)]
    if asked:
        columns += [_questions(split, rows) for split in dict.fromkeys(row.split for row in rows)]
        if any(row.contexts == 1 for row in rows):
            columns.append("1 context: what the question needs, alone")
        columns += _truncations(rows)
    notes = [*signature_notes(first, metrics_of(rows)), *columns, *condition_notes(comparison)]
    significance, seeds = _axis_significance(comparison, asked), []
    if numbers := joined(row.seed for row in rows):
        seeds = [f"seeds: {numbers}{' (means over seeds)' if ', ' in numbers else ''}"]
    notes += [*seeds, *tuning_notes(first), *significance, *run_notes(rows)]
    return replace(table, notes=tuple(notes), brief=frozenset([*columns, *seeds, *significance]))


def _length_note(rows: Sequence[ScoreRow]) -> str:
    if made := corpus_cards.row_length(rows[0].system.corpus):
        low, high = made.trained
        return f"each length: rows of so many {made.unit}; trained on {low} to {high}"
    return "each length: the whole text, cut in windows of so many tokens (blocks)"


def _questions(split: str | None, rows: Sequence[ScoreRow]) -> str:
    """How many questions were asked: those that need more contexts are left out of fewer."""
    counts: dict[int, dict[int, None]] = {}
    for row in rows:
        if row.split == split:
            counts.setdefault(row.sentences, {})[row.contexts or 0] = None
    if len(counts) == 1:
        return f"questions: {next(iter(counts)):,} of {split}"
    parts = [f"{questions:,} with {_contexts(some)}" for questions, some in counts.items()]
    return f"questions of {split}: {', '.join(parts)}"


def _truncations(rows: Sequence[ScoreRow]) -> list[str]:
    """Where all contexts in one row were longer than it may be."""
    shares: dict[str | None, dict[int, list[str]]] = {}
    for row in rows:
        if row.cut:
            by_count = shares.setdefault(row.method, {}).setdefault(row.contexts or 0, [])
            by_count.append(f"{row.cut:,} of {row.sentences:,}")
    notes = []
    for method, counts in shares.items():
        by_share: dict[str, list[int]] = {}
        for count, some in counts.items():
            by_share.setdefault(" or ".join(dict.fromkeys(some)), []).append(count)
        parts = [f"{share} questions with {_contexts(some)}" for share, some in by_share.items()]
        notes.append(f"{method} lost contexts that did not fit one row: {', '.join(parts)}")
    return notes


def _contexts(counts: Iterable[int]) -> str:
    """1 context; 2, 4, 8 contexts."""
    numbers = sorted(counts)
    return f"{', '.join(map(str, numbers))} context{'' if numbers == [1] else 's'}"


def _axis_significance(comparison: Comparison, asked: bool) -> list[str]:
    """What the stars mean; `asked`: they are of questions."""
    tested = [one for one in comparison.differences if one.tested]
    if not tested:
        return []
    several = len({(row.recipe, row.variant) for row in comparison.rows}) > 1
    base = tested[0].baseline
    names = [base.variant if several else "", base.method or ""]
    columns = [(Key.of(one.row).place, one.row.split, one.metric) for one in tested]
    most = max(columns.count(column) for column in columns)
    corrected = f", Holm-corrected for {most} comparisons of a column" if most > 1 else ""
    made = corpus_cards.row_length(comparison.rows[0].system.corpus)
    what = "questions" if asked else "rows" if made else "windows"
    return [
        f"* and **: differs from {' '.join(filter(None, names))} "
        f"{'with as many contexts' if asked else 'at the same length'}, two-sided p below 0.05 and "
        f"0.01: paired bootstrap over {what}, {comparison.resamples} resamples{corrected}",
        scope_note(tests_of(tested), what, trained(comparison.rows)),
        *filter(None, [few_items_note(min(one.sentences for one in tested), what)]),
    ]
