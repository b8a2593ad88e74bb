"""Systems side by side: one row a run and split, and every variant against its baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnkit.recipe.metrics import base_metric
from attnkit.scoring.metrics import Score
from attnkit.scoring.significance import SEED, Comparison, compare, corrected


@dataclass(frozen=True)
class Entry:
    """One system on one split."""

    row: Mapping[str, Any]
    """What is reported: recipe, variant, seed, split, metrics, parameters, run, ..."""
    scores: Mapping[str, Score]
    """The same metrics with their per-sentence statistics."""
    references: str
    """Digest of the references; only systems scored on the same ones are compared."""

    def only(self, metrics: Sequence[str]) -> "Entry":
        """The same with these metrics alone, in this order; those without a score are left out.

        BLEU by several tokenisers is one metric."""
        names = [name for metric in metrics for name in self.scores if base_metric(name) == metric]
        row = {**self.row, "metrics": {name: self.row["metrics"][name] for name in names}}
        return Entry(row, {name: self.scores[name] for name in names}, self.references)


System = tuple[str | None, str, str | None]
"""Recipe, variant, and the method of question answering."""
Group = dict[System, list[Entry]]
"""One entry a training seed."""


def side_by_side(
    entries: Sequence[Entry],
    baselines: Mapping[str | None, str],
    *,
    method: str | None = None,
    resamples: int = 1000,
    seed: int = SEED,
) -> dict[str, Any]:
    """The object that `attnkit eval --format json` prints.

    Rows of questions have `method` and `contexts`, and so have their comparisons: every variant
    and method with as many contexts.

    Args:
        entries: in the order in which they are shown.
        baselines: recipe -> the variant that others are compared with.  Systems are compared
            when they were scored on the same references, with the first baseline among them.
        method: of the baseline, in question answering; the first when None.
        resamples: of the paired bootstrap; 0 leaves the p-values out.
    """
    splits: dict[tuple[Any, ...], Group] = {}
    for entry in entries:
        row = entry.row
        group = splits.setdefault((row["split"], row.get("contexts"), entry.references), {})
        key = (row["recipe"], row["variant"], row.get("method"))
        group.setdefault(key, []).append(entry)
    comparisons = []
    used = []
    for group in splits.values():
        chosen = (key for key in group if baselines.get(key[0]) == key[1])
        base = next((key for key in chosen if method in (None, key[2])), None)
        if base is not None and len(group) > 1:
            used.append(base[1])
            comparisons.extend(_against(base, group, resamples, seed))
    return {
        "rows": [dict(entry.row) for entry in entries],
        "baseline": used[0] if used else None,
        "comparisons": comparisons,
        "resamples": resamples,
        "bootstrap_seed": seed,
    }


def _against(base: System, group: Group, resamples: int, seed: int) -> list[dict[str, Any]]:
    """Comparisons of every other variant of a group with its baseline, metric by metric."""
    out = []
    for metric in group[base][0].scores:
        measured = [key for key in group if all(metric in e.scores for e in group[key])]
        records = [
            _record(metric, key, base, group, resamples, seed) for key in measured if key != base
        ]
        tested = [record for record in records if record["p"] is not None]
        for record, p in zip(tested, corrected([r["p"] for r in tested]), strict=True):
            record["p_corrected"] = p
        out.extend(records)
    return out


def _record(
    metric: str, key: System, base: System, group: Group, resamples: int, seed: int
) -> dict[str, Any]:
    """One variant against the baseline on one metric.

    Scores with different signatures measure different things: difference and p are then null.
    """
    system = [entry.scores[metric] for entry in group[key]]
    against = [entry.scores[metric] for entry in group[base]]
    result: Comparison | None = None
    difference: float | None = None
    if len({score.signature for score in (*system, *against)}) == 1:
        difference = float(np.mean([s.value for s in system]) - np.mean([s.value for s in against]))
        if resamples and system[0].resampled:
            result = compare(system, against, resamples=resamples, seed=seed)
    row = group[key][0].row
    questions = {"method": key[2], "contexts": row.get("contexts"), "baseline_method": base[2]}
    return {
        "recipe": key[0],
        "variant": key[1],
        "split": row["split"],
        **(questions if "contexts" in row else {}),
        "metric": metric,
        "baseline": base[1],
        "baseline_recipe": base[0],
        "difference": difference,
        "p": result and result.p,
        "p_corrected": None,
        "interval": result and list(result.interval),
        "sentences": len(system[0].statistics),
    }
