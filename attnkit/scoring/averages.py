"""The average of each variant over several tasks, as GLUE has it, and its significance.

Wang et al. 2018 ("GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding", section 3): the score of a task is the mean of its metrics, the average is the mean
over tasks, each of which counts the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean, stdev

from attnkit.errors import UsageError
from attnkit.recipe.metrics import metric_facts
from attnkit.scoring.comparison import Baselines, name_systems, reasons
from attnkit.scoring.results import AverageRow, Averages, ScoreRow
from attnkit.scoring.significance import (
    DEFAULT_MARGINS,
    SEED,
    Difference,
    Margins,
    PairedTest,
)

Runs = dict[int | None, ScoreRow]
"""One row a training seed."""


@dataclass(frozen=True)
class _AveragedSystem:
    """One variant on all tasks; its runs are of seeds that all of them have."""

    name: str
    tasks: Mapping[str, Runs]

    @property
    def seeds(self) -> tuple[int | None, ...]:
        return tuple(next(iter(self.tasks.values())))

    def scores(self, task: str) -> list[float]:
        """Of each seed the mean of the metrics."""
        return [
            mean(score.value for score in row.scores.values()) for row in self.tasks[task].values()
        ]

    @property
    def averages(self) -> list[float]:
        """The average over tasks of each seed."""
        return [mean(values) for values in zip(*map(self.scores, self.tasks), strict=True)]


def averages(
    rows: Sequence[ScoreRow],
    baselines: Baselines,
    *,
    resamples: int = 1000,
    margins: Margins = DEFAULT_MARGINS,
) -> tuple[Averages, ...]:
    """One item a split, with a row for each variant that every recipe has.

    Args:
        rows, baselines, margins: as `side_by_side`; one recipe is one task.
        resamples: of the paired bootstrap, in which the sentences of each task are drawn apart.

    Raises:
        UsageError: there is one recipe only, or a metric of which higher is not better.
    """
    recipes = list(dict.fromkeys(str(row.recipe) for row in rows))
    if len(recipes) < 2:
        raise UsageError("--average needs runs of two recipes or more: each is one task")
    for name in dict.fromkeys(name for row in rows for name in row.scores):
        if metric_facts(name).better != "higher":
            raise UsageError(
                f"--average: of {name} higher is not better; choose other metrics by --metrics"
            )
    splits: dict[str | None, dict[str, dict[str, Runs]]] = {}
    for row, name in zip(rows, name_systems(rows), strict=True):
        tasks = splits.setdefault(row.split, {}).setdefault(name, {})
        tasks.setdefault(str(row.recipe), {})[row.seed] = row
    named = {baselines.get(recipe) for recipe in recipes}
    return tuple(
        _of_split(split, recipes, systems, named, resamples, margins)
        for split, systems in splits.items()
    )


def _of_split(
    split: str | None,
    recipes: Sequence[str],
    named: Mapping[str, Mapping[str, Runs]],
    baselines: set[str | None],
    resamples: int,
    margins: Margins,
) -> Averages:
    systems, left_out = list[_AveragedSystem](), dict[str, str]()
    for name, tasks in named.items():
        if missing := [recipe for recipe in recipes if recipe not in tasks]:
            left_out[name] = f"no run of {', '.join(missing)}"
            continue
        seeds = [one for one in tasks[recipes[0]] if all(one in tasks[name] for name in recipes)]
        if not seeds:
            left_out[name] = "no seed that all recipes have"
            continue
        kept = {recipe: {one: tasks[recipe][one] for one in seeds} for recipe in recipes}
        systems.append(_AveragedSystem(name, kept))
    base = next((some for some in systems if some.name in baselines), None)
    tests = _tests(systems, base, recipes, resamples, margins)
    first = systems[0].tasks if systems else {}
    metrics = {recipe: tuple(next(iter(runs.values())).scores) for recipe, runs in first.items()}
    found = tuple(_row(some, base, tests.get(some.name)) for some in systems)
    return Averages(split, base.name if base else None, metrics, found, left_out, resamples)


def _tests(
    systems: Sequence[_AveragedSystem],
    base: _AveragedSystem | None,
    recipes: Sequence[str],
    resamples: int,
    margins: Margins,
) -> dict[str, Difference]:
    """Every other system that is comparable with the baseline, against it, by its name."""
    alike = [some for some in systems if base and not _reasons(some, base)]
    names = {
        name
        for some in alike
        for runs in some.tasks.values()
        for row in runs.values()
        for name in row.scores
    }
    tested = resamples and all(metric_facts(name).resampled for name in names)
    if base is None or not tested or len(alike) < 2:
        return {}
    parts = []
    for place, recipe in enumerate(recipes):
        of_task = [
            PairedTest(
                [[row.scores[name] for row in one.tasks[recipe].values()] for one in alike],
                resamples=resamples,
                seed=SEED + place,
                margins=margins,
            )
            for name in next(iter(base.tasks[recipe].values())).scores
        ]
        parts.append(PairedTest.of_average(of_task))
    found = PairedTest.of_average(parts).against(alike.index(base))
    return {alike[place].name: one for place, one in found.items()}


def _reasons(one: _AveragedSystem, other: _AveragedSystem) -> tuple[str, ...]:
    """Why two systems cannot be compared."""
    pairs = (
        pair
        for recipe in one.tasks
        for pair in product(one.tasks[recipe].values(), other.tasks[recipe].values())
    )
    return tuple(dict.fromkeys(
        reason for mine, theirs in pairs for name in theirs.scores
        for reason in (reasons(mine, theirs, name) if name in mine.scores else ["metric"])
    ))  # fmt: skip


def _row(
    system: _AveragedSystem, base: _AveragedSystem | None, tested: Difference | None
) -> AverageRow:
    values, difference = system.averages, None
    why = _reasons(system, base) if base else ()
    if base and base is not system and not {"data", "metric"} & {*why}:
        difference = mean(values) - mean(base.averages)
    return AverageRow(
        system.name,
        system.seeds,
        {recipe: mean(system.scores(recipe)) for recipe in system.tasks},
        mean(values),
        stdev(values) if len(values) > 1 else None,
        difference,
        tested,
        why,
        {recipe: tuple(row.run for row in runs.values()) for recipe, runs in system.tasks.items()},
    )
