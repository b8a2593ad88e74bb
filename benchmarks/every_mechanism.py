"""Time and memory of every mechanism beside the fused scaled-dot kernel, short and long.

    python benchmarks/every_mechanism.py

Writes results/every-mechanism.md and .json, from `attnkit bench attention`.
"""

import argparse
import json
from typing import Any

from common import (
    RESULTS,
    command,
    json_of,
    load_before,
    publish,
    say,
    table,
    versions,
)

BOTH = "forward+backward"
SIGHTS = {"causal": ["--causal"], "full": []}


def measured(options: argparse.Namespace, *more: str) -> list[dict[str, Any]]:
    """The points of every mechanism that can see so."""
    lengths = ",".join(map(str, options.lengths))
    words = ["--lengths", lengths, "--repeats", str(options.repeats), "--budget", "5"]
    found = json_of("bench", "attention", *words, *more, "--threads", "1", threads=1)
    points: list[dict[str, Any]] = found["points"]
    return points


def main() -> None:
    """Measure, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 2048])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    before, body, ratios = load_before(), list(NOTES), {}
    for sight, words in SIGHTS.items():
        say(f"measuring: {sight}")
        cells: dict[str, dict[int, dict[str, Any]]] = {}
        for point in measured(options, *words):
            cells.setdefault(point["mechanism"], {})[point["length"]] = point[BOTH]
        ratios[sight] = {
            word: {length: one["ratio"] for length, one in row.items()}
            for word, row in cells.items()
        }
        lines = [
            [word, *(amount(row.get(length), name) for name in ("ratio", "bytes")
                     for length in options.lengths)]
            for word, row in cells.items()
        ]  # fmt: skip
        body += ["", f"## {sight}", ""]
        heads = [f"{what} {length:,}" for what in ("speed", "memory") for length in options.lengths]
        body += table(["mechanism", *heads], lines)
    text = json.dumps(ratios, indent=1)
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
    "above 1 is faster. Memory is the peak of what is allocated besides the inputs.",
]


if __name__ == "__main__":
    main()
