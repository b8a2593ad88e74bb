"""Systems side by side as a table."""

from collections.abc import Iterable, Sequence
from statistics import mean, stdev
from typing import NamedTuple

from attnkit.recipe.metrics import metric_facts
from attnkit.scoring.results import COST_COLUMNS, Comparison, CostColumn, ScoreRow
from attnkit.scoring.significance import UNTESTED, Difference
from attnkit.show.comparison_notes import (
    changes_of,
    comparison_notes,
    joined,
    metrics_of,
    search_of,
    trained,
)
from attnkit.show.differences import difference_text, signed
from attnkit.show.quantities import amount
from attnkit.show.table import NONE, PLUS_MINUS, Cell, Column, Table, Value


class Key(NamedTuple):
    """What tells rows apart but for the seed."""

    split: str | None
    recipe: str | None
    variant: str
    """The name of the system."""
    method: str | None
    place: int | None
    """On the axis."""

    @classmethod
    def of(cls, row: ScoreRow) -> "Key":
        return cls(row.split, row.recipe, row.name, row.method, row.contexts or row.length)


class ScoresByKey:
    """The rows of a comparison by their keys, one a seed."""

    def __init__(self, comparison: Comparison) -> None:
        self.groups: dict[Key, list[ScoreRow]] = {}
        for row in comparison.rows:
            self.groups.setdefault(Key.of(row), []).append(row)
        self.differences = {(Key.of(d.row), d.metric): d for d in comparison.differences}
        self.inseparable = {
            (Key.of(row), best.metric) for best in comparison.best for row in best.inseparable
        }
        self.published = comparison.published

    def mean(self, key: Key, metric: str) -> float | None:
        """The mean over seeds, where there is a score."""
        values = self.values(key, metric)
        return mean(values) if values else None

    def values(self, key: Key, metric: str) -> list[float]:
        """One score a seed."""
        scores = (row.scores.get(metric) for row in self.groups.get(key, ()))
        return [score.value for score in scores if score is not None and score.finite]

    def difference_cell(self, key: Key, metric: str) -> Cell:
        found = self.differences.get((key, metric))
        known = (found.value, found.tested, found.not_comparable) if found else (None, None, ())
        return difference_cell(*known, f"{metric}_")

    def figure(self, key: Key, metric: str) -> tuple[float, bool] | None:
        """The published score that stands beside one, and whether they are comparable."""
        for published in self.published:
            if (score := published.score(self.groups[key][0], metric)) is not None:
                return score, published.figures.comparable
        return None

    def best(self, key: Key, metric: str, digits: int) -> bool:
        """Whether none on the split at the same place of the axis is better, unless all are equal.

        Those that cannot be compared with the baseline do not take part.
        """
        apart = {at for at, one in self.differences.items() if one.not_comparable}
        means = {
            other: self.mean(other, metric)
            for other in self.groups
            if (other.split, other.place) == (key.split, key.place) and (other, metric) not in apart
        }
        shown = {k: round(value, digits) for k, value in means.items() if value is not None}
        better = metric_facts(metric).better
        if better == "neither":
            return False
        choose = min if better == "lower" else max
        return len({*shown.values()}) > 1 and shown.get(key) == choose(shown.values())


def warning_lines(comparison: Comparison) -> list[str]:
    """What looks wrong about the outputs, a line each with the runs or files that it is about."""
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


def comparison_table(comparison: Comparison) -> Table:
    """Variants side by side.

    One row a variant and split: each score as its mean (and sample standard deviation) over seeds,
    the difference to the baseline with its interval and p-value, what others published, the number
    of seeds, size, speed and memory.  Questions have a row for each method and number of contexts,
    windows one for each length.
    """
    rows, scores = comparison.rows, ScoresByKey(comparison)
    metrics, keys = metrics_of(rows), list(scores.groups)
    several = [name for name in ("split", "recipe") if len({getattr(r, name) for r in rows}) > 1]
    known = [
        name for name in ("method", "contexts", "length") if any(getattr(row, name) for row in rows)
    ]
    names = [*several, "variant", *known]
    columns = [Column(name, "left", key=True) for name in names]
    cells = [[_name_cell(name, key, scores) for key in keys] for name in names]
    for metric in metrics:
        title = metric_facts(metric).title
        columns.append(Column(title))
        cells.append([_score_cell(key, metric, scores) for key in keys])
        if any(one.metric == metric for one in comparison.differences):
            columns.append(Column("difference", under=True, priority=1))
            cells.append([scores.difference_cell(key, metric) for key in keys])
        if any(scores.figure(key, metric) for key in keys):
            columns.append(Column(f"published {title}", priority=1))
            cells.append([_published_cell(key, metric, scores) for key in keys])
    if trained(rows):
        columns.append(Column("seeds"))
        cells.append([Cell(str(len(scores.groups[key]))) for key in keys])
    for one in COST_COLUMNS:
        costs = [_cost_cell(one, scores.groups[key]) for key in keys]
        if any(cell.text != NONE for cell in costs):
            columns.append(Column(one.title, priority=one.priority))
            cells.append(costs)
    title = ": ".join(filter(None, (joined(getattr(r, n) for r in rows) for n in IN_TITLE)))
    body = tuple(zip(*cells, strict=True))
    notes, brief, about = comparison_notes(comparison)
    return Table(title, tuple(columns), body, notes, brief=brief, about=about)


IN_TITLE = ("recipe", "split")


def _name_cell(name: str, key: Key, scores: ScoresByKey) -> Cell:
    runs = scores.groups[key]
    first, system = runs[0], runs[0].system
    if name != "variant":
        return Cell(str(getattr(first, name) or NONE))
    reasons = (d.not_comparable for (at, _), d in scores.differences.items() if at == key)
    more = {"method": first.method, "contexts": first.contexts, "length": first.length}
    budget = system.budget._asdict() if system.budget else {}
    fields: dict[str, Value] = {
        "recipe": first.recipe,
        "variant": first.variant,
        "split": first.split,
        "system": first.name,
        **{name: value for name, value in more.items() if value},
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
        "not_comparable": joined(reason for some in reasons for reason in some),
        "runs": joined(row.run for row in runs),
        "run_ids": joined(row.run_id for row in runs),
    }
    return Cell(first.name, fields)


def _score_cell(key: Key, metric: str, scores: ScoresByKey) -> Cell:
    values, score = scores.values(key, metric), scores.mean(key, metric)
    sd = stdev(values) if len(values) > 1 else None
    found = (row.scores.get(metric) for row in scores.groups[key])
    inseparable = (key, metric) in scores.inseparable
    fields: dict[str, Value] = {
        metric: score,
        f"{metric}_sd": sd,
        f"{metric}_signature": " ".join(sorted({one.signature for one in found if one})),
    }
    if any(tested == metric for _, tested in scores.inseparable):
        fields[f"{metric}_not_separable_from_best"] = inseparable
    if score is None:
        return Cell(NONE, fields)
    spread = "" if sd is None else f" {PLUS_MINUS} {sd:.2f}"
    return Cell(f"{score:.2f}{spread}", fields, scores.best(key, metric, 2), inseparable)


def _published_cell(key: Key, metric: str, scores: ScoresByKey) -> Cell:
    """In parentheses where it is not comparable."""
    figure, comparable = scores.figure(key, metric) or (None, False)
    fields: dict[str, Value] = {f"{metric}_published": figure}
    if figure is None:
        return Cell(NONE, fields)
    return Cell(f"{figure:.2f}" if comparable else f"({figure:.2f})", fields, dim=not comparable)


def difference_cell(
    value: float | None, tested: Difference | None, not_comparable: Sequence[str], prefix: str = ""
) -> Cell:
    """A difference, in parentheses where it is not that of the systems alone.

    For programs what was not tested is None; `prefix` begins the names of their values.
    """
    low, high = tested.interval if tested and tested.interval else (None, None)
    named: dict[str, Value] = {"difference": value, "low": low, "high": high}
    if tested and tested.percent:
        named |= dict(zip(("percent", "percent_low", "percent_high"), tested.percent, strict=True))
    told = tested.json() if tested else UNTESTED
    named |= {name: told[name] for name in ("p", "p_corrected", "verdict", "provisional")}
    fields = {f"{prefix}{name}": value for name, value in named.items()}
    if value is None:
        return Cell(NONE, fields)
    if not_comparable:
        return Cell(f"({signed(value)})", fields, dim=True)
    return Cell(difference_text(value, tested), fields)


def _cost_cell(column: CostColumn, rows: Iterable[ScoreRow]) -> Cell:
    values = [value for row in rows if (value := column.value(row)) is not None]
    if not values:
        return Cell(NONE, {column.key: None})
    value = column.of_seeds(values)
    if column.in_bytes:
        return Cell(amount(int(value)), {column.key: value})
    text = f"{value:,.1f}" if value < 100 and value % 1 else f"{value:,.0f}"
    return Cell(text, {column.key: value})
