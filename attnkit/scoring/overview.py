"""Overview of many recipes: the difference of each system to a baseline, by task and by cost."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import NamedTuple

from attnkit.errors import MissingInputError
from attnkit.recipe import corpus_cards
from attnkit.recipe.metrics import metric_facts
from attnkit.runs import Run
from attnkit.scoring.comparison import side_by_side
from attnkit.scoring.results import Comparison, ScoreRow, SystemDifference
from attnkit.scoring.saved_scores import saved_rows

SMALL_COST = 10.0
"""Percent of time or memory that counts as small."""
SEVERAL = "each task's baseline"
"""Baseline of a cost column if the recipes have different baselines."""
COSTS: tuple[tuple[str, str, Callable[[ScoreRow], float | None]], ...] = (
    ("training speed", "higher", lambda row: row.system.cost.tokens_per_second),
    ("decoding speed", "higher", lambda row: row.sentences_per_second),
    ("memory", "lower", lambda row: row.system.cost.peak_memory_bytes),
)
"""Cost columns: title, whether higher or lower is better, and value of a row."""


class OverviewCell(NamedTuple):
    """Difference of a system to the baseline of its column, in the column's unit."""

    value: float
    low: float | None = None
    """Lower end of the 95 % interval; None: not tested."""
    high: float | None = None
    seeds: tuple[int, int] | None = None
    """Number of seeds of the system and of the baseline; None for a cost."""

    @property
    def undecided(self) -> bool:
        """Whether the interval contains 0."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high

    @property
    def provisional(self) -> bool:
        """Whether the system or the baseline has a single seed."""
        return self.seeds is not None and min(self.seeds) == 1


@dataclass(frozen=True)
class OverviewColumn:
    """One task at one length, or one measure of cost."""

    title: str
    unit: str
    """Unit of the differences: points of a metric, or percent."""
    baseline: str
    score: float | None
    """Mean score of the baseline over its seeds; None for a cost."""
    better: str
    """"higher" or "lower"."""
    cells: Mapping[str, OverviewCell]
    """Cells by system, without the baseline and systems that were not trained."""
    margin: float | None = None
    """Margin within which systems are level; None: nothing was tested."""

    def gain(self, system: str) -> float | None:
        """Return the gain of a system as a share of the column's largest difference, -1 to 1.

        The largest difference counts as at least the margin (for a cost SMALL_COST), so that level systems are pale.
        Costs count by the logarithm of their ratio: half the time is as far from the baseline as twice the time.
        """
        if system not in self.cells:
            return None
        if self.score is None:
            differences = {name: math.log1p(cell.value / 100) for name, cell in self.cells.items()}
            margin = math.log1p(SMALL_COST / 100)
        else:
            differences, margin = {name: cell.value for name, cell in self.cells.items()}, self.margin or 0.0
        largest = max(margin, *map(abs, differences.values())) or 1.0
        return (-1 if self.better == "lower" else 1) * differences[system] / largest


@dataclass(frozen=True)
class Overview:
    """Table of systems (rows) by tasks and costs (columns)."""

    systems: tuple[str, ...]
    columns: tuple[OverviewColumn, ...]
    notes: tuple[str, ...]
    """Omitted recipes and runs, with reasons."""


def overview(runs: Sequence[Run], baselines: Mapping[str | None, str]) -> Overview:
    """Return the overview of finished runs of any tasks, from their stored scores.

    `baselines` has the baseline of each recipe; that of `rotary_baseline` takes precedence.

    Raises MissingInputError if there is nothing to compare, or DataError if a stored evaluation is damaged.
    """
    compared, notes = list[Comparison](), list[str]()
    recipes: dict[str, list[Run]] = {}
    for run in runs:
        recipes.setdefault(run.name, []).append(run)
    for recipe, recipe_runs in recipes.items():
        scored = [run for run in recipe_runs if run.scores()]
        if not scored:
            notes.append(f"{recipe}: not scored; skipped")
            continue
        base = rotary_baseline(scored) or baselines.get(recipe) or scored[0].variant
        settings, rows = scored[0].recipe.eval, list[ScoreRow]()
        for run in scored:
            try:
                rows += saved_rows(run)
            except MissingInputError as error:  # some of its splits were never scored
                notes.append(f"{error}; skipped")
        if not rows:
            continue
        compared.append(side_by_side(rows, {recipe: base}, settings))
    return overview_of(compared, notes)


def overview_of(compared: Sequence[Comparison], notes: Sequence[str] = ()) -> Overview:
    """Return the overview of comparisons of any recipes. Raises MissingInputError if there is nothing to compare."""
    columns, all_notes, shown = list[OverviewColumn](), [*notes], list[Comparison]()
    for comparison in compared:
        for recipe in dict.fromkeys(row.recipe for row in comparison.rows):
            part = replace(
                comparison,
                rows=tuple(row for row in comparison.rows if row.recipe == recipe),
                differences=tuple(d for d in comparison.differences if d.row.recipe == recipe),
            )
            if recipe_columns := _columns(recipe or "", part):
                columns += recipe_columns
                shown.append(part)
            else:
                all_notes.append(f"{recipe}: nothing to compare; skipped")
    if not columns:
        raise MissingInputError("; ".join(all_notes) or "no runs to compare")
    columns += _cost_columns(shown)
    return Overview(_ordered_systems(columns), tuple(columns), tuple(all_notes))


def rotary_baseline(runs: Sequence[Run]) -> str | None:
    """Return the first variant that has plain scaled-dot attention and rotary positions, or None."""
    for run in runs:
        model = run.recipe.model
        mechanisms = [getattr(model.attention, place) for place in model.places]
        plain = mechanisms and all(chosen.name == "scaled-dot" and not chosen.options() for chosen in mechanisms)
        if plain and model.positions == "rope":
            return run.variant
    return None


def _columns(recipe: str, result: Comparison) -> list[OverviewColumn]:
    """Return a recipe's columns: its first metric with a direction, on its first split (`valid` only if alone)."""
    names = (name for row in result.rows for name in row.scores)
    metric = next((name for name in names if metric_facts(name).better != "neither"), None)
    out = []
    for title, length in _lengths(recipe, result.rows).items():
        splits = [row.split for row in result.rows if row.length == length]
        split = next((name for name in splits if name != "valid"), splits[0] if splits else None)
        differences = [
            difference
            for difference in result.differences
            if difference.metric == metric
            and (difference.row.split, difference.row.length) == (split, length)
            and difference.value is not None
            and not difference.not_comparable
            and difference.row.contexts is None
            and difference.baseline.recipe == difference.row.recipe
        ]
        if not differences or metric is None:
            continue
        facts, base = metric_facts(metric), differences[0].baseline
        tested = [difference.tested for difference in differences if difference.tested]
        base_scores = [
            row.scores[metric].value
            for row in result.rows
            if (row.name, row.split, row.length) == (base.name, split, length) and metric in row.scores
        ]
        out.append(
            OverviewColumn(
                title,
                f"{'% of ' if any(test.percent for test in tested) else ''}{facts.title}",
                base.name,
                mean(base_scores) if base_scores else None,
                facts.better,
                {difference.row.name: _cell(difference) for difference in differences},
                tested[0].margin if tested else None,
            )
        )
    return out


def _lengths(recipe: str, rows: Sequence[ScoreRow]) -> dict[str, int | None]:
    """Return titles and lengths of a recipe's columns: the length of training, and the maximum length."""
    name, unit = recipe.rpartition("/")[2], "tokens"
    lengths = sorted({row.length for row in rows if row.length is not None})
    if not lengths:
        return {name: None}
    first, last, factor = lengths[0], lengths[-1], ""
    if row_length := corpus_cards.row_length(rows[0].system.corpus):
        unit = row_length.unit.partition(",")[0]
        first = max((length for length in lengths if length <= row_length.trained[1]), default=first)
        factor = f" ({last / first:g} x)"
    elif any(row.length is None for row in rows):  # windows of a text, and the text itself
        return {name: None, f"{name}, {last:,} {unit}": last}
    titles: dict[str, int | None] = {f"{name}, {first:,} {unit}": first}
    return titles | ({f"{name}, {last:,} {unit}{factor}": last} if last > first else {})


def _cell(difference: SystemDifference) -> OverviewCell:
    """Return the cell of a difference, in percent for perplexity."""
    assert difference.value is not None
    if difference.tested is None:
        return OverviewCell(difference.value, seeds=difference.seeds)
    if difference.tested.percent:
        return OverviewCell(*difference.tested.percent, difference.seeds)
    low, high = difference.tested.interval or (None, None)
    return OverviewCell(difference.value, low, high, difference.seeds)


def _cost_columns(results: Sequence[Comparison]) -> list[OverviewColumn]:
    """Return the cost columns: mean ratios to the baseline of each recipe, if both were measured on equal machines."""
    out = []
    for title, better, measure in COSTS:
        ratios: dict[str, list[float]] = {}
        bases = set[str]()
        for result in results:
            values: dict[str, list[float]] = {}
            base = result.differences[0].baseline
            for row in result.rows:
                value = measure(row)
                if value and _machine(row) == _machine(base):
                    values.setdefault(row.name, []).append(value)
            for name, costs in values.items():
                if name != base.name and base.name in values:
                    ratios.setdefault(name, []).append(mean(costs) / mean(values[base.name]))
                    bases.add(base.name)
        if ratios:
            geometric_means = {name: math.exp(mean(map(math.log, factors))) for name, factors in ratios.items()}
            cells = {name: OverviewCell(100 * (factor - 1)) for name, factor in geometric_means.items()}
            name = bases.pop() if len(bases) == 1 else SEVERAL
            out.append(OverviewColumn(title, "%", name, None, better, cells))
    return out


def _machine(row: ScoreRow) -> tuple[object, ...]:
    """Return the conditions that must be equal to compare time and memory."""
    cost = row.system.cost
    return cost.device, cost.threads, cost.precision, cost.processes, cost.machine


def _ordered_systems(columns: Sequence[OverviewColumn]) -> tuple[str, ...]:
    """Return the systems: baselines first, then by mean gain on the tasks, the best first."""
    tasks = [column for column in columns if column.score is not None]
    bases = dict.fromkeys(task.baseline for task in tasks)
    names = dict.fromkeys(name for column in columns for name in column.cells if name not in bases)
    gains = {name: [gain for task in tasks if (gain := task.gain(name)) is not None] for name in names}
    return (*bases, *sorted(names, key=lambda name: -mean(gains[name] or [-1.0])))
