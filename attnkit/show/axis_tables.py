"""Comparisons by number of contexts or by length, and any comparison as a screen shows it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import get_args

from attnkit.recipe import corpus_cards
from attnkit.recipe.metrics import metric_facts
from attnkit.scoring.results import Comparison, ScoreRow
from attnkit.show.comparison_notes import Axis, comparison_notes, joined, metrics_of, trained
from attnkit.show.comparison_tables import IN_TITLE, Key, ScoresByKey, comparison_table
from attnkit.show.differences import stars
from attnkit.show.table import NONE, Cell, Column, Table


def tables(comparison: Comparison, *, by_split: bool = True) -> list[Table]:
    """Any comparison as a screen shows it, with its notes below the last table.

    Questions by number of contexts, and rows by length, have a row for each metric and system and
    a column for each number; a table for each split, unless `by_split` is False.  Scores are means
    over seeds, and a star marks a difference to the baseline at the same place.  The numbers for
    programs are those of `comparison_table`.
    """
    rows, scores = comparison.rows, ScoresByKey(comparison)
    axis = axis_of(rows)
    if not axis:
        return [comparison_table(comparison)]
    splits = dict.fromkeys(row.split for row in rows)
    groups = [[row for row in rows if row.split == s] for s in splits] if by_split else [rows]
    *others, last = [_axis_table(some, scores, axis) for some in groups]
    notes = comparison_notes(comparison, axis)
    return [*others, replace(last, notes=notes.every, brief=notes.brief)]


def axis_of(rows: Sequence[ScoreRow]) -> Axis:
    """Along what a comparison goes."""
    return next(name for name in get_args(Axis)
                if not name or any(getattr(row, name) is not None for row in rows))  # fmt: skip


def _axis_table(rows: Sequence[ScoreRow], scores: ScoresByKey, axis: Axis) -> Table:
    """The table of some rows, without notes."""
    keys = [Key.of(row) for row in rows]
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
