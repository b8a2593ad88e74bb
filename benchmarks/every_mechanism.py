"""Time and memory of every mechanism beside the fused scaled-dot kernel, short and long.

    python benchmarks/every_mechanism.py

Writes results/every-mechanism.md and .json, from `attnkit bench attention`.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from common import RESULTS, command, json_of, load_before, publish, say, table, versions

BOTH = "forward+backward"
SHORT = (28, 64, 128)
LAYER = ("--layer", "--batch", "128", "--heads", "4", "--head-width", "32")
"""A layer of width 128 with its projections, for many sentences at a time."""
FIELDS = ("ratio", "bytes")
SIGHTS = {"causal": ["--causal"], "full": []}

Cells: TypeAlias = dict[str, dict[int, dict[str, Any]]]


def measured(lengths: Sequence[int], repeats: int, *more: str) -> Cells:
    """Mechanism -> length -> its forward and backward pass."""
    words = ["--lengths", ",".join(map(str, lengths)), "--repeats", str(repeats), "--budget", "5"]
    found = json_of("bench", "attention", *words, *more, "--threads", "1", threads=1)
    cells: Cells = {}
    for point in found["points"]:
        cells.setdefault(point["mechanism"], {})[point["length"]] = point[BOTH]
    return cells


def main() -> None:
    """Measure, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 2048])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    before, body, numbers = load_before(), list(NOTES), {}
    for sight, words in SIGHTS.items():
        say(f"measuring: {sight}")
        cells = measured(options.lengths, options.repeats, *words)
        layers = measured(SHORT, options.repeats, *LAYER, *words)
        numbers[sight] = {
            word: {length: {name: one[name] for name in FIELDS} for length, one in row.items()}
            for word, row in cells.items()
        }
        lines = [
            [
                word,
                *(amount(row.get(length), "ratio") for length in options.lengths),
                *(amount(layers[word].get(length), "ratio") for length in SHORT),
                *(amount(row.get(length), "bytes") for length in options.lengths),
            ]
            for word, row in cells.items()
        ]
        heads = [f"speed {length:,}" for length in options.lengths]
        heads += [f"layer {length}" for length in SHORT]
        heads += [f"memory {length:,}" for length in options.lengths]
        body += ["", f"## {sight}", "", *table(["mechanism", *heads], lines)]
    text = json.dumps(numbers, indent=1)
    (RESULTS / "every-mechanism.json").write_text(text + "\n", encoding="utf-8")
    facts = {
        "command": command(options),
        "repeats": f"{options.repeats}, all in turn; medians",
        "versions": versions("attnkit", "torch"),
        "load of the machine": before,
    }
    publish("every-mechanism", "Every mechanism, short and long", facts, body)


def amount(point: dict[str, Any] | None, name: str) -> str:
    """A cell: how many times as fast as the fused kernel, or the peak; the reason without one."""
    if point is None:
        return ""
    if point[name] is None:
        return str(point["failure"])
    return f"{point[name]:.2f}" if name == "ratio" else f"{point[name] / 1e6:,.1f} MB"


NOTES = [
    "Mixing alone, forward and backward, one row of 8 heads of width 64, float32, one thread, with",
    "the default options. Speed is beside torch's fused scaled-dot attention in the same rounds:",
    "above 1 is faster. Memory is the peak of what is allocated besides the inputs. Layer: speed",
    "of a whole layer with projections, 128 rows of so many tokens, 4 heads of width 32, beside",
    "that with the fused kernel.",
]


if __name__ == "__main__":
    main()
