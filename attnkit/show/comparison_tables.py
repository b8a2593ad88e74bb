"""Tables that compare systems: a row for each system, or a column for each length or number of contexts."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import mean, stdev
from typing import NamedTuple, get_args

from attnkit.recipe import corpus_cards
from attnkit.recipe.metrics import metric_facts
from attnkit.scoring.results import COST_COLUMNS, Comparison, CostColumn, ScoreRow
from attnkit.show.comparison_notes import (
    Axis,
    changes_of,
    comparison_notes,
    joined,
    scored_metrics,
    search_of,
    trained,
)
from attnkit.show.differences import difference_cell, stars
from attnkit.show.quantities import amount
from attnkit.show.table import NONE, PLUS_MINUS, Cell, Column, Table, Value


class Key(NamedTuple):
    """Identity of a row without its seed."""

    split: str | None
    recipe: str | None
    variant: str  # name of the system
    method: str | None
    place: int | None  # number of contexts or length

    @classmethod
    def of(cls, row: ScoreRow) -> "Key":
        return cls(row.split, row.recipe, row.name, row.method, row.contexts or row.length)


class ScoresByKey:
    """The rows of a comparison by key, one per seed, and their cells."""

    def __init__(self, comparison: Comparison) -> None:
        self.groups: dict[Key, list[ScoreRow]] = {}
        for row in comparison.rows:
            self.groups.setdefault(Key.of(row), []).append(row)
        self.differences = {(Key.of(d.row), d.metric): d for d in comparison.differences}
        self.inseparable = {(Key.of(row), best.metric) for best in comparison.best for row in best.inseparable}
        self.published = comparison.published

    def values(self, metric: str, key: Key) -> list[float]:
        """Return the finite scores, one per seed."""
        scores = (row.scores.get(metric) for row in self.groups.get(key, ()))
        return [score.value for score in scores if score is not None and score.finite]

    def best(self, metric: str, key: Key, digits: int) -> bool:
        """Return whether the score is the best on its split at its place of the axis, unless all scores are equal.

        Systems that are not comparable with the baseline are skipped.
        """
        better = metric_facts(metric).better
        not_comparable = {at for at, difference in self.differences.items() if difference.not_comparable}
        shown = {
            other: round(mean(values), digits)
            for other in self.groups
            if (other.split, other.place) == (key.split, key.place) and (other, metric) not in not_comparable
            if (values := self.values(metric, other))
        }
        if better == "neither" or len({*shown.values()}) < 2:
            return False
        return shown.get(key) == (min if better == "lower" else max)(shown.values())

    def figure(self, metric: str, key: Key) -> tuple[float, bool] | None:
        """Return the published score of a system, and whether it is comparable; None without one."""
        for published in self.published:
            if (score := published.score(self.groups[key][0], metric)) is not None:
                return score, published.figures.comparable
        return None

    def name_cell(self, key: Key) -> Cell:
        """Return the name of the system; for programs, with everything that identifies it."""
        runs = self.groups[key]
        first, system = runs[0], runs[0].system
        reasons = (d.not_comparable for (at, _), d in self.differences.items() if at == key)
        optional = {"method": first.method, "contexts": first.contexts, "length": first.length}
        budget = system.budget._asdict() if system.budget else {}
        fields: dict[str, Value] = {
            "recipe": first.recipe,
            "variant": first.variant,
            "split": first.split,
            "system": first.name,
            **{name: value for name, value in optional.items() if value},
            "seeds": joined(row.seed for row in runs),
            "sentences": first.sentences,
            "corpus": system.corpus,
            "source_sha256": first.source,
            "references_sha256": first.references if first.source else None,
            "search": search_of(first),
            "search_from": None if first.files else first.search_from,
            **{f"train_{name}": value for name, value in budget.items()},
            "train_updates": joined(row.system.cost.updates for row in runs),
            "train_changes": joined(changes_of(row.system) for row in runs),
            "not_comparable": joined(reason for reasons_of_pair in reasons for reason in reasons_of_pair),
            "runs": joined(row.run for row in runs),
            "run_ids": joined(row.run_id for row in runs),
        }
        return Cell(first.name, fields)

    def score_cell(self, metric: str, key: Key) -> Cell:
        """Return the mean and sample standard deviation over seeds."""
        values, inseparable = self.values(metric, key), (key, metric) in self.inseparable
        sd = stdev(values) if len(values) > 1 else None
        scores = (row.scores.get(metric) for row in self.groups[key])
        fields: dict[str, Value] = {
            metric: mean(values) if values else None,
            f"{metric}_sd": sd,
            f"{metric}_signature": " ".join(sorted({score.signature for score in scores if score})),
        }
        if any(tested == metric for _, tested in self.inseparable):
            fields[f"{metric}_not_separable_from_best"] = inseparable
        if not values:
            return Cell(NONE, fields)
        spread = "" if sd is None else f" {PLUS_MINUS} {sd:.2f}"
        text = f"{mean(values):.2f}{spread}"
        return Cell(text, fields, self.best(metric, key, 2), inseparable)

    def difference_cell(self, metric: str, key: Key) -> Cell:
        """Return the difference to the baseline."""
        difference = self.differences.get((key, metric))
        parts = (difference.value, difference.tested, difference.not_comparable) if difference else (None, None, ())
        return difference_cell(*parts, f"{metric}_")

    def published_cell(self, metric: str, key: Key) -> Cell:
        """Return the published score, in parentheses if it is not comparable."""
        figure, comparable = self.figure(metric, key) or (None, True)
        text = NONE if figure is None else f"{figure:.2f}" if comparable else f"({figure:.2f})"
        return Cell(text, {f"{metric}_published": figure}, dim=not comparable)

    def measured(self, measure: CostColumn, key: Key) -> float | None:
        """Return a cost, reduced over seeds; None if it is unknown."""
        values = (measure.value(row) for row in self.groups[key])
        known = [value for value in values if value is not None]
        return measure.of_seeds(known) if known else None

    def axis_cell(self, digits: int, place: int, system: tuple[Key, str]) -> Cell:
        """Return the mean over seeds at one place of the axis, with the stars of its difference to the baseline."""
        key, metric = system[0]._replace(place=place), system[1]
        if not (values := self.values(metric, key)):
            return Cell(NONE)
        difference = self.differences.get((key, metric))
        mark = stars(difference.tested.p_holm) if difference and difference.tested else ""
        # no space before the stars, because there are many columns
        text = f"{mean(values):.{digits}f}{mark.strip()}"
        return Cell(text, best=self.best(metric, key, digits))


def tables(comparison: Comparison, *, by_split: bool = True) -> list[Table]:
    """Return the tables of any comparison, with notes below the last table.

    Questions by number of contexts, and rows by length, have a row for each metric and system, and a column for each
    number; splits have tables of their own, unless `by_split` is False. Scores are means over seeds, and stars mark
    significant differences to the baseline at the same place. Values for programs are in `comparison_table`.
    """
    rows, scores = comparison.rows, ScoresByKey(comparison)
    axis = axis_of(rows)
    if not axis:
        return [comparison_table(comparison)]
    splits = dict.fromkeys(row.split for row in rows)
    groups = [[row for row in rows if row.split == s] for s in splits] if by_split else [rows]
    *others, last = [_axis_table(group, scores, axis) for group in groups]
    notes = comparison_notes(comparison, axis)
    return [*others, replace(last, notes=notes.every, brief=notes.brief)]


def axis_of(rows: Sequence[ScoreRow]) -> Axis:
    """Return the axis along which the rows of a comparison differ."""
    return next(name for name in get_args(Axis) if not name or any(getattr(row, name) is not None for row in rows))


def comparison_table(comparison: Comparison) -> Table:
    """Return a row for each variant and split, and also for each method, number of contexts or length.

    Columns are the mean of each score over seeds (with its sample standard deviation), the difference to the baseline
    with its interval and p-value, the published score, the number of seeds, size, speed and memory.
    """
    rows, scores = comparison.rows, ScoresByKey(comparison)
    keys = list(scores.groups)

    def named(name: str) -> Column:
        return Column(
            name, lambda key: Cell(str(getattr(scores.groups[key][0], name) or NONE)), align="left", key=True
        )

    columns = [named(name) for name in IN_TITLE[::-1] if len({getattr(r, name) for r in rows}) > 1]
    columns.append(Column("variant", scores.name_cell, align="left", key=True))
    columns += [named(name) for name in ("method", "contexts", "length") if any(getattr(row, name) for row in rows)]
    for metric in scored_metrics(rows):
        title = metric_facts(metric).title
        columns.append(Column(title, partial(scores.score_cell, metric)))
        if any(difference.metric == metric for difference in comparison.differences):
            columns.append(Column("difference", partial(scores.difference_cell, metric), under=True, priority=1))
        if any(scores.figure(metric, key) for key in keys):
            columns.append(Column(f"published {title}", partial(scores.published_cell, metric), priority=1))
    if trained(rows):
        columns.append(Column("seeds", lambda key: Cell(str(len(scores.groups[key])))))
    for measure in COST_COLUMNS:
        value = partial(scores.measured, measure)
        if any(value(key) is not None for key in keys):
            form = amount if measure.in_bytes else _number
            columns.append(Column(measure.title, value, form, measure.key, priority=measure.priority))
    title = ": ".join(filter(None, (joined(getattr(r, n) for r in rows) for n in IN_TITLE)))
    notes, brief = comparison_notes(comparison)
    return replace(Table.of(title, keys, columns, notes), brief=brief)


IN_TITLE = ("recipe", "split")


def _number(value: float) -> str:
    return f"{value:,.1f}" if value < 100 and value % 1 else f"{value:,.0f}"


def _axis_table(rows: Sequence[ScoreRow], scores: ScoresByKey, axis: Axis) -> Table:
    """Return a table with a column for each place of the axis, without notes."""
    keys = [Key.of(row) for row in rows]
    places = sorted({key.place or 0 for key in keys})
    field_values = [list(dict.fromkeys(names)) for names in zip(*keys, strict=True)][:-1]
    untrained = not trained(rows)  # models, not variants of a recipe
    always = {"method"} if axis == "contexts" else {"variant"}
    always |= {"variant"} if untrained else set()

    def named(name: str) -> Column:
        title = "model" if name == "variant" and untrained else name
        return Column(title, lambda system: Cell(str(getattr(system[0], name))), align="left", key=True)

    columns = [
        named(name)
        for name, values in zip(Key._fields, field_values, strict=False)
        if name in always or len(values) > 1
    ]
    metric = Column("metric", lambda system: Cell(metric_facts(system[1]).title), align="left", key=True)
    columns.insert(bool(columns) and columns[0].title == "split", metric)
    digits = 1 if axis == "contexts" else 2  # there are many numbers of contexts
    columns += [Column(str(at), partial(scores.axis_cell, digits, at)) for at in places]
    systems = [
        (key, metric)
        for split, metric in product(field_values[0], scored_metrics(rows))
        for key in (Key._make([split, *names, None]) for names in product(*field_values[1:]))
        if any(scores.values(metric, key._replace(place=at)) for at in places)
    ]
    recipes, splits = (joined(getattr(row, name) for row in rows) for name in IN_TITLE)
    numbers = "number of contexts"
    if axis == "length":
        generated = corpus_cards.row_length(rows[0].system.corpus)
        numbers = f"length in {generated.unit}" if generated else "length of the text in tokens"
    return Table.of(f"{recipes}: {splits}, by {numbers}", systems, columns)


def warning_lines(comparison: Comparison) -> list[str]:
    """Return the warnings about outputs, one line each, with the runs or files concerned."""
    about: dict[str, list[str | None]] = {}
    for row in comparison.rows:
        for text in row.warnings:
            about.setdefault(text, []).append(row.files.hypotheses if row.files else row.run)
    out = []
    for text, names in about.items():
        first, *others = dict.fromkeys(names)
        more = f" and {len(others)} more" if len(others) > 1 else "".join(f", {o}" for o in others)
        out.append(f"{first}{more}: {text}")
    return out
