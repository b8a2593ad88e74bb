"""The average of each variant over several tasks, as GLUE has it, and its significance.

Wang et al. 2018 ("GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding", section 3): the score of a task is the mean of its metrics, the average is the mean
over tasks, each of which counts the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from attnkit.errors import UsageError
from attnkit.recipe.metrics import metric_facts
from attnkit.scoring.significance import (
    DEFAULT_MARGINS,
    SEED,
    UNTESTED,
    Difference,
    Margins,
    PairedTest,
)
from attnkit.scoring.systems import Entry, differences, name_systems

Runs = dict[int | None, Entry]
"""One entry a training seed."""


@dataclass(frozen=True)
class _AveragedSystem:
    """One variant on all tasks; its runs are of seeds that all of them have."""

    name: str
    tasks: Mapping[str, Runs]

    @property
    def seeds(self) -> list[int | None]:
        return list(next(iter(self.tasks.values())))

    def scores(self, task: str) -> list[float]:
        """Of each seed the mean of the metrics."""
        return [
            mean(score.value for score in entry.scores.values())
            for entry in self.tasks[task].values()
        ]

    @property
    def averages(self) -> list[float]:
        """The average over tasks of each seed."""
        return [mean(values) for values in zip(*map(self.scores, self.tasks), strict=True)]


def averages(
    entries: Sequence[Entry],
    baselines: Mapping[str | None, str],
    *,
    resamples: int = 1000,
    seed: int = SEED,
    margins: Margins = DEFAULT_MARGINS,
) -> list[dict[str, Any]]:
    """One object a split, with a row for each variant that every recipe has.

    A row has `scores` by recipe, their `average` and its `sd` over seeds, and `difference`, `p`,
    `p_corrected` (Holm), `interval` and `verdict` to the baseline, as comparisons have them.
    `left_out` says why other variants have none.

    Args:
        entries, baselines, seed, margins: as `side_by_side`; one recipe is one task.
        resamples: of the paired bootstrap, in which the sentences of each task are drawn apart.

    Raises:
        UsageError: there is one recipe only, or a metric of which higher is not better.
    """
    recipes = list(dict.fromkeys(str(entry.row["recipe"]) for entry in entries))
    if len(recipes) < 2:
        raise UsageError("--average needs runs of two recipes or more: each is one task")
    for name in dict.fromkeys(name for entry in entries for name in entry.scores):
        if metric_facts(name).better != "higher":
            raise UsageError(
                f"--average: of {name} higher is not better; choose other metrics by --metrics"
            )
    splits: dict[str, dict[str, dict[str, Runs]]] = {}
    for entry, name in zip(entries, name_systems(entries), strict=True):
        systems = splits.setdefault(entry.row["split"], {})
        tasks = systems.setdefault(name, {})
        tasks.setdefault(str(entry.row["recipe"]), {})[entry.row["seed"]] = entry
    named = {baselines.get(recipe) for recipe in recipes}
    return [
        _of_split(split, recipes, systems, named, resamples, seed, margins)
        for split, systems in splits.items()
    ]


def _of_split(
    split: str,
    recipes: Sequence[str],
    named: Mapping[str, Mapping[str, Runs]],
    baselines: set[str | None],
    resamples: int,
    seed: int,
    margins: Margins,
) -> dict[str, Any]:
    systems, left_out = list[_AveragedSystem](), dict[str, str]()
    for name, tasks in named.items():
        if missing := [recipe for recipe in recipes if recipe not in tasks]:
            left_out[name] = f"no run of {', '.join(missing)}"
            continue
        common = set.intersection(*(set(tasks[recipe]) for recipe in recipes))
        seeds = [one for one in tasks[recipes[0]] if one in common]
        if not seeds:
            left_out[name] = "no seed that all recipes have"
            continue
        kept = {recipe: {one: tasks[recipe][one] for one in seeds} for recipe in recipes}
        systems.append(_AveragedSystem(name, kept))
    base = next((some for some in systems if some.name in baselines), None)
    tests = _tests(systems, base, recipes, resamples, seed, margins) if systems else {}
    metrics = {
        recipe: list(next(iter(systems[0].tasks[recipe].values())).scores) for recipe in recipes
    } if systems else {}  # fmt: skip
    return {
        "split": split,
        "baseline": base.name if base else None,
        "metrics": metrics,
        "rows": [_row(some, base, tests) for some in systems],
        "left_out": left_out,
        "resamples": resamples,
    }


Tested = dict[str, Difference]
"""By the name of a system."""


def _tests(
    systems: Sequence[_AveragedSystem], base: _AveragedSystem | None, recipes: Sequence[str],
    resamples: int, seed: int, margins: Margins,
) -> Tested:  # fmt: skip
    """Every other system that is comparable with the baseline, against it."""
    alike = [some for some in systems if base and not _reasons(some, base)]
    names = {name for some in alike for runs in some.tasks.values()
             for entry in runs.values() for name in entry.scores}  # fmt: skip
    tested = resamples and all(metric_facts(name).resampled for name in names)
    if base is None or not tested or len(alike) < 2:
        return {}
    parts = []
    for place, recipe in enumerate(recipes):
        metrics = next(iter(base.tasks[recipe].values())).scores
        of_task = [
            PairedTest(
                [[entry.scores[name] for entry in one.tasks[recipe].values()] for one in alike],
                resamples=resamples, seed=seed + place, margins=margins,
            )
            for name in metrics
        ]  # fmt: skip
        parts.append(PairedTest.of_average(of_task))
    found = PairedTest.of_average(parts).against(alike.index(base))
    return {alike[place].name: one for place, one in found.items()}


def _reasons(one: _AveragedSystem, other: _AveragedSystem) -> list[str]:
    """Why two systems cannot be compared."""
    pairs = [
        (mine, theirs)
        for recipe in one.tasks
        for mine in one.tasks[recipe].values()
        for theirs in other.tasks[recipe].values()
    ]
    return list(dict.fromkeys(
        reason for mine, theirs in pairs for name in theirs.scores
        for reason in (differences(mine, theirs, name) if name in mine.scores else ["metric"])
    ))  # fmt: skip


def _row(system: _AveragedSystem, base: _AveragedSystem | None, tests: Tested) -> dict[str, Any]:
    """One variant; difference and p are null for the baseline and where they mean nothing."""
    values = system.averages
    found = tests.get(system.name)
    reasons = _reasons(system, base) if base else []
    difference = None
    if base and base is not system and not {"data", "metric"} & {*reasons}:
        difference = mean(values) - mean(base.averages)
    return {
        "variant": system.name,
        "seeds": system.seeds,
        "scores": {recipe: mean(system.scores(recipe)) for recipe in system.tasks},
        "average": mean(values),
        "sd": stdev(values) if len(values) > 1 else None,
        "difference": difference,
        "not_comparable": reasons,
        **(found.json() if found else UNTESTED),
        "runs": {
            recipe: [entry.row["run"] for entry in runs.values()]
            for recipe, runs in system.tasks.items()
        },
    }
