"""What each mechanism can recall, from the runs of the recipes in recipes/diagnostics.

    for task in associative-recall copy selective-copy induction; do
        attnkit train diagnostics/$task train.seeds=[1,2,3] --out RUNS --jobs 2
    done
    python benchmarks/recall.py RUNS

Writes results/recall.md, .json and .svg: the accuracy of every mechanism at every length.
"""

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

from common import (
    RESULTS,
    command,
    json_of,
    load_before,
    publish,
    table,
    versions,
)

from attnkit.recipe import corpus_cards
from attnkit.show.figure import matplotlib_defaults, rendered

TASKS = ("associative-recall", "copy", "selective-copy", "induction")
WIDE = 5.0
"""Points between the best and the worst seed from which on both are given."""
Scores = dict[str, dict[int, list[float]]]
"""variant -> length -> accuracy in %, one a seed."""


def scores_of(found: dict[str, Any]) -> Scores:
    scores: Scores = {}
    for row in found["rows"]:
        accuracy = row["metrics"]["accuracy"]["score"]
        scores.setdefault(row["variant"], {}).setdefault(row["length"], []).append(accuracy)
    return scores


def cell(values: list[float]) -> str:
    """The best seed, and how far the worst is behind it where luck decides."""
    low, high = min(values), max(values)
    return f"{high:.1f}" + f" ({low:.0f})" * (high - low > WIDE)


def lengths_of(scores: Scores) -> list[int]:
    return sorted({length for row in scores.values() for length in row})


def picture(tasks: dict[str, Scores], order: list[str]) -> bytes:
    """A map of accuracies for each task, SVG: a line a mechanism, a column a length."""
    from matplotlib.figure import Figure

    with matplotlib_defaults(order):
        widths = [len(lengths_of(scores)) for scores in tasks.values()]
        size = (2.6 + 0.5 * sum(widths), 0.21 * len(order) + 1)  # inches
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(tasks), width_ratios=widths, sharey=True)
        for axes, (name, scores) in zip(panels, tasks.items(), strict=True):
            lengths = lengths_of(scores)
            values = [[max(scores[one][at]) for at in lengths] for one in order]
            axes.imshow(values, vmin=0, vmax=100, cmap="viridis", aspect="auto")
            for line, row in enumerate(values):
                for column, value in enumerate(row):
                    colour = "white" if value < 60 else "black"
                    axes.text(
                        column, line, f"{value:.0f}",
                        ha="center", va="center", color=colour, fontsize=7,
                    )  # fmt: skip
            axes.set_xticks(range(len(lengths)), map(str, lengths))
            axes.set_yticks(range(len(order)), order, fontsize=8)
            axes.tick_params(length=0)
            axes.set_title(name.replace("-", " "), fontsize=9)
            axes.set_xlabel(unit_of(name), fontsize=8)
        return rendered(figure, "svg", "accuracy by task and length")


def unit_of(name: str) -> str:
    """What the lengths of a task are numbers of, and those of training."""
    known = corpus_cards.row_length(f"toy-{name}")
    assert known is not None
    return f"{known.unit.partition(',')[0]} (trained: {known.trained[0]} to {known.trained[1]})"


def main() -> None:
    """Score what is new, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, metavar="RUNS")
    options = parser.parse_args()
    before = load_before()
    found = {name: json_of("eval", options.runs / "diagnostics" / name) for name in TASKS}
    tasks = {name: scores_of(one) for name, one in found.items()}
    # the best on average of all tasks and lengths first
    order = sorted(
        tasks[TASKS[0]],
        key=lambda one: -mean(mean(map(max, scores[one].values())) for scores in tasks.values()),
    )
    body = list(NOTES)
    for name, scores in tasks.items():
        lengths = lengths_of(scores)
        seeds = sorted({row["seed"] for row in found[name]["rows"]})
        lines = [[one, *(cell(scores[one][at]) for at in lengths)] for one in order]
        numbers = f"Accuracy in %, by {unit_of(name)}; seeds {', '.join(map(str, seeds))}."
        body += ["", f"## {name}", "", numbers, ""]
        body += table(["mechanism", *map(str, lengths)], lines)
    (RESULTS / "recall.json").write_text(
        json.dumps({"accuracy": tasks}, indent=1) + "\n", encoding="utf-8"
    )
    (RESULTS / "recall.svg").write_bytes(picture(tasks, order))
    facts = {
        "command": command(options, runs="RUNS"),
        "versions": versions("attnkit", "torch"),
        "load of the machine": before,
    }
    publish("recall", "What each mechanism can recall", facts, body)


NOTES = [
    "Decoders of two layers and width 64: the first layer is the same short convolution in every",
    "row, the second the mechanism with two heads of 32; no positions are added. 1,500 updates of",
    "1,024 tokens. Accuracy is that of the tokens of the answer and of its end, given those",
    "before; rows of the test set are new, and up to 8 times as long as those of training. Given",
    "is what a mechanism can do: the best seed, and the worst in parentheses where it is more than",
    "5 points behind. A task that one seed learns and another does not is learned late: whether it",
    "is learned within this budget is then luck, and most of all so with induction.",
    "",
    "![accuracy by task and length](recall.svg)",
]


if __name__ == "__main__":
    main()
