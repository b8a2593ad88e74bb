"""The picture that README opens with: mechanisms by tasks, from kept runs, and by speed.

`python benchmarks/publish.py` writes it, of the mechanisms that several tasks have.  The recipes of
published/ are left out: each has rows of its own.  The column of speed is that of
results/every-mechanism.json: a causal layer's training on rows of 2,048 tokens.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from common import RESULTS

from attnkit.recipe import load, shipped
from attnkit.runs import Run
from attnkit.scoring.overview import Overview, OverviewCell, OverviewColumn, overview
from attnkit.show.overview import overview_picture

TASKS = ("translation", "summarization", "dialogue", "classification", "language-modeling")
"""From left to right; then the others."""
LEAST_TASKS = 3
"""Recipes that a mechanism is in, at least."""
LENGTH = "2048"


def chosen(kept: Mapping[str, Sequence[Run]]) -> Overview:
    """What the picture shows."""
    names = [name for name in kept if not name.startswith("published/")]
    names.sort(key=lambda name: [kept[name][0].recipe.task != task for task in TASKS])
    baselines: dict[str | None, str] = {
        name: load(shipped()[name]).baseline or "" for name in names
    }
    whole = overview([run for name in names for run in kept[name]], baselines)
    tasks = Counter(system for name in names for system in {run.variant for run in kept[name]})
    systems = [name for name in whole.systems if tasks[name] >= LEAST_TASKS]
    columns = []
    for one in whole.columns:
        if one.score is not None:  # costs are left out: trained beside other work
            recipe = one.title.partition(",")[0]
            name = next(name for name in names if name.rpartition("/")[2] == recipe)
            columns.append(replace(one, title=f"{kept[name][0].recipe.task}: {one.title}"))
    columns.append(speed())
    for at, one in enumerate(columns):
        cells = {name: one.cells[name] for name in systems if name in one.cells}
        columns[at] = replace(one, cells=cells)
    return Overview(tuple(systems), tuple(columns), ())


def speed() -> OverviewColumn:
    """How much faster each mechanism trains at 2,048 tokens than torch's fused attention."""
    ratios = json.loads((RESULTS / "every-mechanism.json").read_text("utf-8"))["causal"]
    cells = {name: OverviewCell(100 * (some[LENGTH] - 1)) for name, some in ratios.items()
             if some.get(LENGTH) is not None}  # fmt: skip
    return OverviewColumn("speed at 2,048 tokens", "%", "scaled-dot", None, "higher", cells)


def chart(kept: Mapping[str, Sequence[Run]]) -> str:
    """The heat map, SVG."""
    return overview_picture(chosen(kept), "svg").data.decode("utf-8")
