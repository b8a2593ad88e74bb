"""The overview in README: a heat map of mechanisms by tasks, from stored runs, and by cost.

`python benchmarks/publish.py` writes it, with the mechanisms that several tasks besides diagnostics have. The recipes
of published/ and those without a row of scaled-dot are left out, since they have other rows. The columns of speed and
memory are from results/every-mechanism.json: training of causal attention on rows of 2,048 tokens.
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
"""The first columns, from left to right."""
PLAIN = "scaled-dot"
LEAST_TASKS = 3
"""Minimum number of recipes, besides diagnostics, of a mechanism."""
LENGTH = "2048"


def chosen(kept: Mapping[str, Sequence[Run]]) -> Overview:
    """Return the systems and columns of the heat map."""
    names = [
        name
        for name, runs in kept.items()
        if not name.startswith("published/") and any(run.variant == PLAIN for run in runs)
    ]
    names.sort(key=lambda name: [kept[name][0].recipe.task != task for task in TASKS])
    baselines: dict[str | None, str] = {name: load(shipped()[name]).baseline or "" for name in names}
    whole = overview([run for name in names for run in kept[name]], baselines)
    tasks = Counter(
        system
        for name in names
        if not name.startswith("diagnostics/")
        for system in {run.variant for run in kept[name]}
    )
    systems = [name for name in whole.systems if tasks[name] >= LEAST_TASKS]
    columns = []
    for one in whole.columns:
        if one.score is not None:  # else a cost, which is not measured: the runs were trained beside other work
            recipe = one.title.partition(",")[0]
            name = next(name for name in names if name.rpartition("/")[2] == recipe)
            columns.append(replace(one, title=f"{kept[name][0].recipe.task}: {one.title}"))
    columns += costs()
    shown = []
    for one in columns:
        cells = {name: one.cells[name] for name in systems if name in one.cells}
        if cells:  # else the recipe shares no row
            shown.append(replace(one, cells=cells))
    return Overview(tuple(systems), tuple(shown), ())


def costs() -> tuple[OverviewColumn, OverviewColumn]:
    """Return the speed and memory of training at 2,048 tokens, relative to torch's fused attention."""
    measured = json.loads((RESULTS / "every-mechanism.json").read_text("utf-8"))["causal"]
    points = {name: some[LENGTH] for name, some in measured.items() if LENGTH in some}
    fused, columns = points["fused"], []
    for field, title, better in (("ratio", "speed", "higher"), ("bytes", "memory", "lower")):
        cells = {
            name: OverviewCell(100 * (one[field] / fused[field] - 1))
            for name, one in points.items()
            if one[field] is not None
        }
        title = f"{title} at 2,048 tokens"
        columns.append(OverviewColumn(title, "%", "fused scaled-dot", None, better, cells))
    return columns[0], columns[1]


def chart(kept: Mapping[str, Sequence[Run]]) -> str:
    """Return the heat map as SVG."""
    return overview_picture(chosen(kept), "svg").data.decode("utf-8")
