"""Systems side by side: one row a run and split, and every variant against its baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from attnkit.recipe.metrics import metric_facts
from attnkit.scoring.significance import (
    DEFAULT_MARGINS,
    LEVEL,
    SEED,
    UNTESTED,
    Difference,
    Margins,
    PairedTest,
)
from attnkit.scoring.systems import Entry, differences, name_systems

System = tuple[str | None, str, str | None]
"""Recipe, name (see `name_systems`), and the method of question answering."""
Group = dict[System, list[Entry]]
"""One entry a training seed."""


def side_by_side(
    entries: Sequence[Entry],
    baselines: Mapping[str | None, str],
    *,
    method: str | None = None,
    published: Sequence[Mapping[str, Any]] = (),
    resamples: int = 1000,
    seed: int = SEED,
    margins: Margins = DEFAULT_MARGINS,
) -> dict[str, Any]:
    """The object that `attnkit eval --format json` prints.

    Each row, comparison and best one has in `system` the name that tells it from others of its
    variant; see `name_systems`.  Rows of questions have `method` and `contexts`, and so have their
    comparisons: every variant and method with as many contexts.  Rows of windows have `length`, and
    so have theirs.

    Systems are compared with the first baseline that was scored on the same references.  Where
    they differ from it in more than the system, `not_comparable` says in what: data, search,
    metric (its settings) or budget.  Then nothing is tested, and only where the data and the metric
    are the same is there a difference.

    Args:
        entries: in the order in which they are shown.
        baselines: recipe -> the variant, system or run that others are compared with.
        method: of the baseline, in question answering; the first when None.
        published: figures from elsewhere to be shown beside these; see `published_figures`.
        resamples: of the paired bootstrap; 0 leaves out intervals, p-values and what follows from
            them.
        margins: within which systems are level.
    """
    named = name_systems(entries)
    entries = [
        replace(entry, row={**entry.row, "system": name})
        for entry, name in zip(entries, named, strict=True)
    ]
    comparisons: list[dict[str, Any]] = []
    best: list[dict[str, Any]] = []
    used = []
    for group in _groups(entries, baselines):
        if len(group) == 1:
            continue
        chosen = (key for key in group if _named(group[key], baselines))
        base = next((key for key in chosen if method in (None, key[2])), None)
        if base is not None:
            used.append(group[base][0].row["variant"])
        for metric in dict.fromkeys(name for some in group.values() for name in some[0].scores):
            judged = _MetricJudgement(metric, group, base, resamples, seed, margins)
            comparisons.extend(judged.against_baseline())
            best.extend(judged.not_separable_from_best())
    return {
        "rows": [dict(entry.row) for entry in entries],
        "baseline": used[0] if used else None,
        "comparisons": comparisons,
        "best": best,
        "published": [dict(figures) for figures in published],
        "resamples": resamples,
        "bootstrap_seed": seed,
    }


def _named(entries: Sequence[Entry], baselines: Mapping[str | None, str]) -> bool:
    """Whether a system is its recipe's baseline."""
    rows = [entry.row for entry in entries]
    names = {row.get(key) for row in rows for key in ("variant", "system", "run")} - {None}
    return baselines.get(rows[0]["recipe"]) in names


def _groups(entries: Sequence[Entry], baselines: Mapping[str | None, str]) -> list[Group]:
    """The systems of each split, number of contexts and length scored on the same references.

    One that finds no baseline on its own references joins the first ones of its split, where it is
    marked as not comparable.
    """
    places: dict[tuple[Any, ...], dict[str, Group]] = {}
    for entry in entries:
        row = entry.row
        groups = places.setdefault((row["split"], row.get("contexts"), row.get("length")), {})
        group = groups.setdefault(entry.references, {})
        group.setdefault((row["recipe"], row["system"], row.get("method")), []).append(entry)
    out = []
    for groups in places.values():
        first, *others = groups.values()
        out.append(first)
        for group in others:
            if len(group) > 1 and any(_named(some, baselines) for some in group.values()):
                out.append(group)
            else:
                for key, some in group.items():
                    first.setdefault(key, []).extend(some)
    return out


class _MetricJudgement:
    """The systems of one split by one metric.

    Only those that can be compared with the baseline (without one, the first system) are tested.
    """

    def __init__(
        self,
        metric: str,
        group: Group,
        base: System | None,
        resamples: int,
        seed: int,
        margins: Margins,
    ) -> None:
        self.metric, self.group = metric, group
        self.measured = {
            key: [entry.scores[metric] for entry in entries if metric in entry.scores]
            for key, entries in group.items() if any(metric in e.scores for e in entries)
        }  # fmt: skip
        self.base = base if base in self.measured else None
        first = self.base or next(iter(self.measured), None)
        self.reasons = {key: self._reasons(key, first) for key in self.measured if first}
        self.alike = [key for key, reasons in self.reasons.items() if not reasons]
        self.test: PairedTest | None = None
        systems = [self.measured[key] for key in self.alike]
        if resamples and len(systems) > 1:
            self.test = PairedTest(systems, resamples=resamples, seed=seed, margins=margins)

    def _reasons(self, key: System, first: System) -> list[str]:
        """Why a system cannot be compared with the first one; seeds may differ among themselves."""
        pairs = product(self.group[first], self.group[key])
        return list(dict.fromkeys(
            reason for one, other in pairs for reason in differences(one, other, self.metric)
        ))  # fmt: skip

    def against_baseline(self) -> list[dict[str, Any]]:
        """Every other system against the baseline; untested differences are null."""
        if self.base is None:
            return []
        others = [key for key in self.measured if key != self.base]
        tests = self._tests(self.base)
        return [self._record(key, tests.get(key)) for key in others]

    def not_separable_from_best(self) -> list[dict[str, Any]]:
        """The best system, and which others are not separable from it; [] where none is known.

        Every system is tested against the best one, with Holm's correction: those that pass are
        a set that holds the truly best system with a probability of 95 % (multiple comparisons
        with the best: Gupta 1965, "On Some Multiple Decision (Selection and Ranking) Rules";
        Hsu 1984, "Constrained Simultaneous Confidence Intervals for Multiple Comparisons with the
        Best").
        """
        better = metric_facts(self.metric).better
        if self.test is None or better == "neither":
            return []
        choose = min if better == "lower" else max
        means = {key: np.mean([s.value for s in self.measured[key]]) for key in self.alike}
        leader = choose(self.alike, key=means.__getitem__)
        tests = self._tests(leader)
        if not tests:
            return []
        others = [
            {
                **self._name(key),
                "difference": found.value,
                "p": found.p,
                "p_corrected": found.p_holm,
                "separable": found.p_holm < LEVEL,
                "level": found.p_holm >= LEVEL,  # the older name of not separable
            }
            for key, found in tests.items()
        ]
        split = {"split": self.group[leader][0].row["split"]}
        return [{**split, **self._name(leader), "metric": self.metric, "others": others}]

    def _tests(self, against: System) -> dict[System, Difference]:
        """Every comparable other system against one."""
        if self.test is None or against not in self.alike:
            return {}
        found = self.test.against(self.alike.index(against))
        return {self.alike[place]: one for place, one in found.items()}

    def _name(self, key: System) -> dict[str, Any]:
        row = self.group[key][0].row
        questions = {"method": key[2], "contexts": row.get("contexts")}
        named = {"recipe": key[0], "variant": row["variant"], "system": key[1]}
        named |= {"length": row["length"]} if "length" in row else {}
        return named | (questions if "contexts" in row else {})

    def _record(self, key: System, found: Difference | None) -> dict[str, Any]:
        """One system against the baseline; difference and p are null where they mean nothing."""
        assert self.base is not None
        difference: float | None = None
        if not {"data", "metric"} & {*self.reasons[key], *self.reasons[self.base]}:
            system, against = self.measured[key], self.measured[self.base]
            difference = float(
                np.mean([s.value for s in system]) - np.mean([s.value for s in against])
            )
        row = self.group[key][0].row
        return {
            "split": row["split"],
            **self._name(key),
            "metric": self.metric,
            "not_comparable": self.reasons[key],
            "baseline": self.group[self.base][0].row["variant"],
            "baseline_system": self.base[1],
            "baseline_recipe": self.base[0],
            **({"baseline_method": self.base[2]} if "contexts" in row else {}),
            "difference": difference,
            **(found.json() if found else UNTESTED),
            "seeds": [len(self.measured[key]), len(self.measured[self.base])],
            "sentences": len(self.measured[key][0].statistics),
        }
