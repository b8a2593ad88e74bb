"""Heat maps of the accuracy of each mechanism in recall, from the stored runs of recipes/diagnostics.

`python benchmarks/publish.py` writes them: the median over seeds of the accuracy at every length, and how many seeds
learn if some do and others do not.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import median

from attnkit.recipe import corpus_cards
from attnkit.runs import Run
from attnkit.scoring.saved_scores import saved_rows
from attnkit.show.figure import matplotlib_defaults, rendered

TASKS = ("associative-recall", "induction", "selective-copy", "copy")
LEARNED, FAILED = 90, 50
"""Accuracy from which a seed has learned, and below which it has not."""
Scores = dict[str, dict[int, list[float]]]
"""Variant -> length -> accuracy in % of each seed."""


def recalled(kept: Mapping[str, Sequence[Run]]) -> dict[str, Scores]:
    """Return the accuracies of all stored diagnostics, by task."""
    tasks: dict[str, Scores] = {}
    for task in TASKS:
        if f"diagnostics/{task}" not in kept:
            continue
        scores = tasks.setdefault(task, {})
        for row in chain.from_iterable(map(saved_rows, kept[f"diagnostics/{task}"])):
            assert row.length is not None
            by_length = scores.setdefault(row.variant, {})
            by_length.setdefault(row.length, []).append(row.scores["accuracy"].value)
    return tasks


def cell(seeds: Sequence[float]) -> str:
    """Return the median, and the number of seeds that learn if some do and others do not."""
    split = max(seeds) >= LEARNED and min(seeds) < FAILED
    learned = sum(one >= LEARNED for one in seeds)
    return f"{median(seeds):.0f}" + f" ({learned}/{len(seeds)})" * split


def chart(kept: Mapping[str, Sequence[Run]]) -> str:
    """Return the maps of all tasks as SVG: a line for each mechanism, a column for each length."""
    from matplotlib.figure import Figure

    tasks = recalled(kept)
    first = next(iter(tasks.values()))
    order = sorted(first, key=lambda one: -median(first[one][max(first[one])]))
    with matplotlib_defaults(order):
        lengths = {task: sorted({at for row in scores.values() for at in row}) for task, scores in tasks.items()}
        widths = [len(found) for found in lengths.values()]
        size = (2.6 + 0.55 * sum(widths), 0.21 * len(order) + 1)  # inches
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(tasks), width_ratios=widths, sharey=True, squeeze=False)
        for axes, (task, scores) in zip(panels[0], tasks.items(), strict=True):
            nothing = [float("nan")]
            values = [[scores.get(one, {}).get(at, nothing) for at in lengths[task]] for one in order]
            axes.imshow(
                [[median(one) for one in row] for row in values], vmin=0, vmax=100, cmap="viridis", aspect="auto"
            )
            for line, row in enumerate(values):
                for column, seeds in enumerate(row):
                    if seeds is not nothing:
                        color = "white" if median(seeds) < 60 else "black"
                        axes.text(column, line, cell(seeds), ha="center", va="center", color=color, fontsize=6)
            axes.set_xticks(range(len(lengths[task])), map(str, lengths[task]))
            axes.set_yticks(range(len(order)), order, fontsize=8)
            axes.tick_params(length=0)
            axes.set_title(task.replace("-", " "), fontsize=9)
            axes.set_xlabel(_unit(task), fontsize=8)
        return rendered(figure, "svg", "median accuracy by task and length").decode("utf-8")


def _unit(task: str) -> str:
    """Return the unit of the lengths of a task, and the lengths in training."""
    known = corpus_cards.row_length(f"toy-{task}")
    assert known is not None
    return f"{known.unit.partition(',')[0]} (trained: {known.trained[0]} to {known.trained[1]})"
