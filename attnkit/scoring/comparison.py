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

MOST_KEYS = 3
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
        rows: in the order of tables; `named` names them.
        settings: a `bootstrap` of 0 omits intervals, p-values and all that depends on them.
        method: method of the baseline in question answering; None: the first method.
        published: figures to show beside the scores.
    """
    rows = named(rows)
    differences, best, used = list[SystemDifference](), list[BestSystem](), list[str]()
    for group in _groups(rows, baselines):
        if len(group) == 1:
            continue
        chosen = (key for key in group if _is_baseline(group[key], baselines))
        base = next((key for key in chosen if method in (None, key[2])), None)
        if base is not None:
            used.append(group[base][0].variant)
        for metric in dict.fromkeys(name for some in group.values() for name in some[0].scores):
            found, leaders = _judged(metric, group, base, settings)
            differences += found
            best += leaders
    return Comparison(
        tuple(rows), used[0] if used else None, tuple(differences), tuple(best), tuple(published), settings.bootstrap
    )


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
    places: dict[tuple[Any, ...], dict[str, Group]] = {}
    for row in rows:
        groups = places.setdefault((row.split, row.contexts, row.length), {})
        group = groups.setdefault(row.references, {})
        group.setdefault((row.recipe, row.name, row.method), []).append(row)
    out = []
    for groups in places.values():
        first, *others = groups.values()
        out.append(first)
        for group in others:
            if len(group) > 1 and any(_is_baseline(some, baselines) for some in group.values()):
                out.append(group)
            else:
                for key, some in group.items():
                    first.setdefault(key, []).extend(some)
    return out


def _judged(
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
        key: found
        for key, rows in group.items()
        if (found := [row.scores[metric] for row in rows if metric in row.scores])
    }
    first = base if base in scores else next(iter(scores))
    assert first is not None
    why = {  # over all pairs of seeds, whose conditions may differ
        key: tuple(
            dict.fromkeys(text for pair in product(group[first], group[key]) for text in reasons(*pair, metric))
        )
        for key in scores
    }
    alike = [key for key in scores if not why[key]]
    means = {key: float(np.mean([one.value for one in some])) for key, some in scores.items()}
    test: PairedTest | None = None
    if settings.bootstrap and len(alike) > 1:
        test = PairedTest([scores[key] for key in alike], settings)

    def tests(against: Key) -> dict[Key, Difference]:
        if test is None or against not in alike:
            return {}
        return {alike[at]: one for at, one in test.against(alike.index(against)).items()}

    differences, best = list[SystemDifference](), list[BestSystem]()
    tested = tests(first) if first == base else {}
    for key in scores if first == base else ():
        if key != first:
            unlike = {"data", "metric"} & {*why[key], *why[first]}
            differences.append(
                SystemDifference(
                    group[key][0],
                    group[first][0],
                    metric,
                    None if unlike else means[key] - means[first],
                    tested.get(key),
                    why[key],
                    (len(scores[key]), len(scores[first])),
                    len(scores[key][0].statistics),
                )
            )
    better = metric_facts(metric).better
    if test is not None and better != "neither":
        leader = (min if better == "lower" else max)(alike, key=means.__getitem__)
        if others := tuple((group[key][0], found) for key, found in tests(leader).items()):
            best.append(BestSystem(group[leader][0], metric, others))
    return differences, best


def reasons(one: ScoreRow, other: ScoreRow, metric: str) -> list[str]:
    """Return which conditions differ between two scores: data, search, metric, training data, budget.

    A condition that is unknown for one score, as for files of outputs, is skipped.
    """
    ours, theirs = (_conditions(row, metric) for row in (one, other))
    data = {"data": None} if one.references != other.references else {}
    unlike = (name for name in ours if None not in (ours[name], theirs[name]) and ours[name] != theirs[name])
    return list(data | dict.fromkeys(unlike))


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
    for place, row in enumerate(rows):
        variants.setdefault((row.recipe, row.variant), []).append(place)
    out = [*rows]
    for places in variants.values():
        for place, name in zip(places, _names([rows[at] for at in places]), strict=True):
            out[place] = replace(rows[place], name=name)
    return out


def full_names(rows: Sequence[ScoreRow]) -> list[str]:
    """Return the names of the rows' systems, with the recipe if there are several recipes."""
    several = len({row.recipe for row in rows}) > 1
    return [f"{row.name} of {row.recipe}" if several else row.name for row in rows]


def _names(rows: Sequence[ScoreRow]) -> list[str]:
    facts = [_facts(row) for row in rows]
    systems = [(json.dumps(one, sort_keys=True), "") for one in facts]
    folders = [_folder(row) for row in rows]
    runs = {(*system, row.seed, row.run) for system, row in zip(systems, rows, strict=True)}
    if len({key[:-1] for key in runs}) < len(runs):  # two runs of one seed are two systems
        systems = [(one, folder) for (one, _), folder in zip(systems, folders, strict=True)]
    if len({*systems}) == 1:
        return [row.variant for row in rows]
    keys = [
        key for key in dict.fromkeys(key for one in facts for key in one) if len({one.get(key) for one in facts}) > 1
    ]
    found: dict[tuple[str, str], str] = {}
    for row, one, system, folder in zip(rows, facts, systems, folders, strict=True):
        if system not in found:
            name = _name(row.variant, one, keys)
            again = not keys or name in found.values()
            found[system] = f"{name} ({folder})" if again else name
    return [found[system] for system in systems]


def _facts(row: ScoreRow) -> Mapping[str, str]:
    """Return the settings, changes and search by which systems of one variant differ."""
    changes = [f"{change.key} at step {change.step}" for change in row.system.changes]
    search = search_text(row.search) if row.search else ""
    return {**row.system.settings, "changed": ", ".join(changes), "search": search}


def _folder(row: ScoreRow) -> str:
    """Return the folder of the run, or the folder that contains all its seeds."""
    path = Path(str(row.run))
    return (path.parent if path.name.startswith("seed-") else path).as_posix()


def _name(variant: str, one: Mapping[str, str], keys: Sequence[str]) -> str:
    """Return the variant and the differing settings, otherwise the changes, otherwise the search."""
    settings = [key for key in keys if key not in ("changed", "search")]
    ends = [key.rpartition(".")[2] for key in settings]
    parts = [
        f"{end if ends.count(end) == 1 else key}={one[key]}"
        for key, end in zip(settings, ends, strict=True)
        if key in one
    ]
    if not settings and "changed" in keys:
        parts = [f"changed: {one['changed']}"] if one["changed"] else []
    elif not settings and "search" in keys:
        parts = [one["search"]] if one["search"] else []
    more = [f"{len(parts) - MOST_KEYS} more"] if len(parts) > MOST_KEYS else []
    return f"{variant} ({', '.join(parts[:MOST_KEYS] + more)})" if parts else variant
