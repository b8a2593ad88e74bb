"""Which runs are one system with several seeds, and which systems can be compared."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnkit.recipe.metrics import base_metric
from attnkit.recipe.search_text import effective, search_text
from attnkit.scoring.metrics import LABELS, TEACHER_FORCED, Score

MOST_KEYS = 3
"""Settings that a name lists, at most."""
Facts = Mapping[str, str]


@dataclass(frozen=True)
class Entry:
    """One system on one split."""

    row: Mapping[str, Any]
    """What is reported: recipe, variant, seed, split, metrics, parameters, run, ..."""
    scores: Mapping[str, Score]
    """The same metrics with their per-sentence statistics."""
    references: str
    """Digest of the references; only systems scored on the same ones are compared."""
    settings: Facts = field(default_factory=dict)
    """What it was trained by but for the seed, by dotted keys; empty where that is not known."""

    def only(self, metrics: Sequence[str]) -> "Entry":
        """The same with these metrics alone, in this order; those without a score are left out.

        BLEU by several tokenizers is one metric."""
        names = [name for metric in metrics for name in self.scores if base_metric(name) == metric]
        row = {**self.row, "metrics": {name: self.row["metrics"][name] for name in names}}
        scores = {name: self.scores[name] for name in names}
        return Entry(row, scores, self.references, self.settings)


def name_systems(entries: Sequence[Entry]) -> list[str]:
    """The name of each entry's system: the variant, where that is enough.

    Runs are one system where their recipes, the changes to these during training and the search
    are equal, and their seeds differ.  Other runs of a variant are systems of their own, named by
    what differs, as in `linear (steps=120)`, and by their folder where that does not tell.
    """
    variants: dict[tuple[Any, str], list[int]] = {}
    for place, entry in enumerate(entries):
        key = (entry.row["recipe"], entry.row["variant"])
        variants.setdefault(key, []).append(place)
    names = [""] * len(entries)
    for places in variants.values():
        for place, name in zip(places, _names([entries[at] for at in places]), strict=True):
            names[place] = name
    return names


def _names(entries: Sequence[Entry]) -> list[str]:
    """Names for the entries of one variant."""
    facts = [_facts(entry) for entry in entries]
    systems = [(json.dumps(one, sort_keys=True), "") for one in facts]
    runs: dict[tuple[Any, ...], set[Any]] = {}
    for entry, system in zip(entries, systems, strict=True):
        runs.setdefault((system, entry.row.get("seed")), set()).add(entry.row.get("run"))
    if any(len(some) > 1 for some in runs.values()):  # the same seed twice: no second seed
        systems = [(one, _folder(entry)) for (one, _), entry in zip(systems, entries, strict=True)]
    if len({*systems}) == 1:
        return [entry.row["variant"] for entry in entries]
    keys = [
        key for key in dict.fromkeys(key for one in facts for key in one)
        if len({one.get(key) for one in facts}) > 1
    ]  # fmt: skip
    named: dict[tuple[str, str], str] = {}
    for entry, one, system in zip(entries, facts, systems, strict=True):
        if system not in named:
            name = _name(entry.row["variant"], _parts(one, keys))
            if name in named.values() or not keys:
                name = _name(name, [_folder(entry)])
            named[system] = name
    return [named[system] for system in systems]


def _facts(entry: Entry) -> Facts:
    """What tells systems of one variant apart, in words."""
    row = entry.row
    changes = [f"{change['key']} at step {change['step']}" for change in row.get("changes") or ()]
    search = search_text(row["search"]) if row.get("search") else ""
    return {**entry.settings, "changed": ", ".join(changes), "search": search}


def _folder(entry: Entry) -> str:
    """The folder of the run with its sister seeds."""
    path = Path(str(entry.row.get("run")))
    return (path.parent if path.name.startswith("seed-") else path).as_posix()


def _name(name: str, parts: Sequence[str]) -> str:
    known = [part for part in parts if part]
    more = [f"{len(known) - MOST_KEYS} more"] if len(known) > MOST_KEYS else []
    return f"{name} ({', '.join(known[:MOST_KEYS] + more)})" if known else name


def _parts(one: Facts, keys: Sequence[str]) -> list[str]:
    """The differences in words: in settings, else in changes, else in the search.

    What one of them has not is "".
    """
    settings = [key for key in keys if key not in ("changed", "search")]
    ends = [key.rpartition(".")[2] for key in settings]
    parts = []
    for key, end in zip(settings, ends, strict=True):
        name = end if ends.count(end) == 1 else key
        parts.append(f"{name}={one[key]}" if key in one else "")
    if not parts and "changed" in keys:
        parts.append(one["changed"] and f"changed: {one['changed']}")
    return parts or [one["search"] if "search" in keys else ""]


def differences(one: Entry, other: Entry, metric: str) -> list[str]:
    """Why two scores by a metric do not compare the systems alone: data, search, metric, budget.

    What is not known of one of them, as of outputs from elsewhere, is no reason.
    """
    facts = [_conditions(entry, metric) for entry in (one, other)]
    known = [name for name in facts[0] if all(some[name] is not None for some in facts)]
    different = [name for name in known if facts[0][name] != facts[1][name]]
    data = ["data"] if one.references != other.references else []
    return list(dict.fromkeys([*data, *different]))


def _conditions(entry: Entry, metric: str) -> dict[str, Any]:
    """What must be equal for a fair comparison; None where it is not known."""
    row = entry.row
    search = None if base_metric(metric) in (*TEACHER_FORCED, *LABELS) else row.get("search")
    score = entry.scores.get(metric)
    return {
        "data": (row.get("digests") or {}).get("source"),
        "search": effective(search) if search else None,
        "metric": score and score.signature,
        "training data": row.get("training_data"),
        "budget": row.get("budget"),
    }
