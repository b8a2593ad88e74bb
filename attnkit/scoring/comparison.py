"""Comparison of systems: rows of one system, conditions of a fair comparison, and tests of differences."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from attnkit.recipe.metrics import base_metric, metric_facts
from attnkit.recipe.schema import EvalConfig
from attnkit.recipe.search_settings import effective, search_text
from attnkit.scoring.metrics import LABELS, TEACHER_FORCED
from attnkit.scoring.results import BestSystem, Comparison, PublishedFigures, ScoreRow, SystemDifference
from attnkit.scoring.significance import DEFAULTS, Difference, PairedTest

MAX_KEYS = 3
"""Maximum number of settings in the name of a system."""
Baselines = Mapping[str | None, str]
"""Baseline of each recipe: a variant, system or run."""
Key = tuple[str | None, str, str | None]
"""Recipe, name and method of question answering of a system."""
Group = dict[Key, list[ScoreRow]]
"""Rows of each system, one per training seed."""


def side_by_side(
    rows: Sequence[ScoreRow],
    baselines: Baselines,
    settings: EvalConfig = DEFAULTS,
    *,
    method: str | None = None,
    published: Sequence[PublishedFigures] = (),
) -> Comparison:
    """Compare each system with the first baseline that was scored on the same references.

    Questions are compared at equal numbers of contexts, windows of text at equal lengths. Systems that were scored or
    trained under other conditions than the baseline (see `reasons`) are not tested.

    Args:
        rows: in the order in which tables show them; `named` names them.
        settings: a `bootstrap` of 0 omits intervals, p-values and all that depends on them.
        method: method of the baseline in question answering; None: the first method.
        published: figures to show beside the scores.
    """
    rows = named(rows)
    differences, best, variants = list[SystemDifference](), list[BestSystem](), list[str]()
    for group in _groups(rows, baselines):
        if len(group) == 1:
            continue
        base_keys = (key for key in group if _is_baseline(group[key], baselines))
        base = next((key for key in base_keys if method in (None, key[2])), None)
        if base is not None:
            variants.append(group[base][0].variant)
        for metric in dict.fromkeys(name for seeds in group.values() for name in seeds[0].scores):
            group_differences, group_best = _compare_group(metric, group, base, settings)
            differences += group_differences
            best += group_best
    baseline = variants[0] if variants else None
    return Comparison(tuple(rows), baseline, tuple(differences), tuple(best), tuple(published), settings.bootstrap)


def first_baselines(rows: Iterable[ScoreRow], chosen: str | Mapping[str, str] | None = None) -> dict[str | None, str]:
    """Return the baseline of each recipe: the chosen variant, otherwise that of the first row."""
    out: dict[str | None, str] = {}
    for row in rows:
        given = chosen if isinstance(chosen, str) else (chosen or {}).get(row.recipe or "")
        out.setdefault(row.recipe, given or row.variant)
    return out


def _is_baseline(rows: Sequence[ScoreRow], baselines: Baselines) -> bool:
    """Return whether the recipe's baseline is the variant, the name or a run of this system."""
    names = {name for row in rows for name in (row.variant, row.name, row.run)}
    return baselines.get(rows[0].recipe) in names - {None}


def _groups(rows: Sequence[ScoreRow], baselines: Baselines) -> list[Group]:
    """Return the systems grouped by split, number of contexts, length and references.

    A group of a single system, or without a baseline, joins the first group of its split as not comparable.
    """
    by_split: dict[tuple[Any, ...], dict[str, Group]] = {}
    for row in rows:
        groups = by_split.setdefault((row.split, row.contexts, row.length), {})
        group = groups.setdefault(row.references, {})
        group.setdefault((row.recipe, row.name, row.method), []).append(row)
    out = []
    for groups in by_split.values():
        first, *others = groups.values()
        out.append(first)
        for group in others:
            if len(group) > 1 and any(_is_baseline(seeds, baselines) for seeds in group.values()):
                out.append(group)
            else:
                for key, seeds in group.items():
                    first.setdefault(key, []).extend(seeds)
    return out


def _compare_group(
    metric: str, group: Group, base: Key | None, settings: EvalConfig
) -> tuple[list[SystemDifference], list[BestSystem]]:
    """Test the systems of a group by one metric: against the baseline, and against the best system.

    Only systems comparable with the baseline (without a baseline: with the first system) are tested.

    The tests against the best system have Holm's correction: the best system and those not separable from it are a
    set that contains the truly best system with a probability of 95 % (multiple comparisons with the best: Gupta 1965,
    "On Some Multiple Decision (Selection and Ranking) Rules"; Hsu 1984, "Constrained Simultaneous Confidence Intervals
    for Multiple Comparisons with the Best").
    """
    scores = {
        key: seed_scores
        for key, rows in group.items()
        if (seed_scores := [row.scores[metric] for row in rows if metric in row.scores])
    }
    first = base if base in scores else next(iter(scores))
    assert first is not None
    not_comparable = {  # over all pairs of seeds, whose conditions may differ
        key: tuple(
            dict.fromkeys(reason for pair in product(group[first], group[key]) for reason in reasons(*pair, metric))
        )
        for key in scores
    }
    comparable = [key for key in scores if not not_comparable[key]]
    means = {key: float(np.mean([score.value for score in seed_scores])) for key, seed_scores in scores.items()}
    test: PairedTest | None = None
    if settings.bootstrap and len(comparable) > 1:
        test = PairedTest([scores[key] for key in comparable], settings)

    def differences_to(key: Key) -> dict[Key, Difference]:
        if test is None or key not in comparable:
            return {}
        return {comparable[i]: difference for i, difference in test.against(comparable.index(key)).items()}

    differences, best = list[SystemDifference](), list[BestSystem]()
    tested = differences_to(first) if first == base else {}
    for key in scores if first == base else ():
        if key != first:
            no_value = {"data", "metric"} & {*not_comparable[key], *not_comparable[first]}
            differences.append(
                SystemDifference(
                    group[key][0],
                    group[first][0],
                    metric,
                    None if no_value else means[key] - means[first],
                    tested.get(key),
                    not_comparable[key],
                    (len(scores[key]), len(scores[first])),
                    len(scores[key][0].statistics),
                )
            )
    better = metric_facts(metric).better
    if test is not None and better != "neither":
        leader = (min if better == "lower" else max)(comparable, key=means.__getitem__)
        if others := tuple((group[key][0], difference) for key, difference in differences_to(leader).items()):
            best.append(BestSystem(group[leader][0], metric, others))
    return differences, best


def reasons(first: ScoreRow, second: ScoreRow, metric: str) -> list[str]:
    """Return which conditions differ between two scores: data, search, metric, training data, budget.

    A condition that is unknown for one score, as for files of outputs, is skipped.
    """
    out = {"data": None} if first.references != second.references else {}
    values = _conditions(second, metric)
    for name, value in _conditions(first, metric).items():
        if None not in (value, values[name]) and value != values[name]:
            out[name] = None
    return list(out)


def _conditions(row: ScoreRow, metric: str) -> dict[str, object]:
    """Return the conditions that must be equal for a fair comparison; None: unknown."""
    search = None if base_metric(metric) in (*TEACHER_FORCED, *LABELS) else row.search
    score = row.scores.get(metric)
    return {
        "data": row.source,
        "search": effective(search) if search else None,
        "metric": score and score.signature,
        "training data": row.system.training_data,
        "budget": row.system.budget,
    }


def named(rows: Sequence[ScoreRow]) -> list[ScoreRow]:
    """Return the rows with the names of their systems: the variant, if that is unambiguous.

    Runs are one system if their recipes, the changes to these during training and the search are equal, and their
    seeds differ. Other runs of a variant are separate systems, named by the settings that differ, as in
    `linear (steps=120)`, or by their folder if that is not enough.
    """
    variants: dict[tuple[str | None, str], list[int]] = {}
    for index, row in enumerate(rows):
        variants.setdefault((row.recipe, row.variant), []).append(index)
    out = [*rows]
    for indices in variants.values():
        for index, name in zip(indices, _variant_names([rows[index] for index in indices]), strict=True):
            out[index] = replace(rows[index], name=name)
    return out


def full_names(rows: Sequence[ScoreRow]) -> list[str]:
    """Return the names of the rows' systems, with the recipe if there are several recipes."""
    several = len({row.recipe for row in rows}) > 1
    return [f"{row.name} of {row.recipe}" if several else row.name for row in rows]


def _variant_names(rows: Sequence[ScoreRow]) -> list[str]:
    settings = [_settings(row) for row in rows]
    folders = [_folder(row) for row in rows]
    systems = [(json.dumps(values, sort_keys=True), "") for values in settings]
    runs = {(*system, row.seed, row.run) for system, row in zip(systems, rows, strict=True)}
    if len({key[:-1] for key in runs}) < len(runs):  # two runs of one seed are two systems
        systems = [(values, folder) for (values, _), folder in zip(systems, folders, strict=True)]
    if len({*systems}) == 1:
        return [row.variant for row in rows]
    keys = dict.fromkeys(key for values in settings for key in values)
    differing = [key for key in keys if len({values.get(key) for values in settings}) > 1]
    names: dict[tuple[str, str], str] = {}
    for row, values, system, folder in zip(rows, settings, systems, folders, strict=True):
        if system not in names:
            name = _name(row.variant, values, differing)
            ambiguous = not differing or name in names.values()
            names[system] = f"{name} ({folder})" if ambiguous else name
    return [names[system] for system in systems]


def _settings(row: ScoreRow) -> Mapping[str, str]:
    """Return the settings, changes and search by which systems of one variant differ."""
    changes = [f"{change.key} at step {change.step}" for change in row.system.changes]
    search = search_text(row.search) if row.search else ""
    return {**row.system.settings, "changed": ", ".join(changes), "search": search}


def _folder(row: ScoreRow) -> str:
    """Return the folder of the run, or the folder that contains all its seeds."""
    path = Path(str(row.run))
    return (path.parent if path.name.startswith("seed-") else path).as_posix()


def _name(variant: str, values: Mapping[str, str], differing: Sequence[str]) -> str:
    """Return the variant and the differing settings, otherwise the changes, otherwise the search."""
    keys = [key for key in differing if key not in ("changed", "search")]
    short_keys = [key.rpartition(".")[2] for key in keys]
    parts = [
        f"{short if short_keys.count(short) == 1 else key}={values[key]}"
        for key, short in zip(keys, short_keys, strict=True)
        if key in values
    ]
    if not keys and "changed" in differing:
        parts = [f"changed: {values['changed']}"] if values["changed"] else []
    elif not keys and "search" in differing:
        parts = [values["search"]] if values["search"] else []
    rest = [f"{len(parts) - MAX_KEYS} more"] if len(parts) > MAX_KEYS else []
    return f"{variant} ({', '.join(parts[:MAX_KEYS] + rest)})" if parts else variant
