"""Language models trained on short texts and tested on longer ones, from the runs of their recipes.

    attnkit train language-modeling/length-masked --out RUNS --data-dir DIR
    attnkit train language-modeling/length --out RUNS --data-dir DIR
    python benchmarks/length.py RUNS --data-dir DIR

Writes results/length.md, .json and .svg: every variant at every length, and the entropy scale
against the plain scores with the same positions.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
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

from attnkit.runs import find_runs
from attnkit.runs.curves import learning_curves
from attnkit.show.curves_figure import picture

RECIPES = {
    "language-modeling/length-masked": "accuracy",
    "language-modeling/length": "perplexity",
}
"""The recipes, each with the metric of its table."""
TITLES = {"accuracy": "Accuracy of masked tokens, in %", "perplexity": "Perplexity a token"}
SCALED = "-scaled"
"""The end of the names of variants with the entropy scale."""


def evaluated(options: argparse.Namespace, *words: Path | str) -> dict[str, Any]:
    """What `attnkit eval --format json` prints of some runs."""
    data = ["--data-dir", options.data_dir.resolve()] if options.data_dir else []
    found: dict[str, Any] = json_of("eval", *words, *data)
    return found


def cell(row: dict[str, Any], metric: str, tests: list[dict[str, Any]]) -> str:
    """A score, with the stars of its test."""
    p = next((one["p"] for one in tests if one["length"] == row["length"]), None)
    stars = "" if p is None or p >= 0.05 else r"\*\*" if p < 0.01 else r"\*"
    return f"{row['metrics'][metric]['score']:.2f}{stars}"


def section(name: str, found: dict[str, Any], options: argparse.Namespace) -> Iterator[str]:
    """The table of one recipe; the tests of its pairs are added to `found`."""
    metric, pairs = RECIPES[name], {}
    variants = list(dict.fromkeys(row["variant"] for row in found["rows"]))
    for variant in variants:
        plain = variant.removesuffix(SCALED)
        if variant != plain and plain in variants:
            say(f"{name}: {variant} against {plain}")
            folders = [options.runs / name / one for one in (plain, variant)]
            pairs[variant] = evaluated(options, *folders, "--baseline", plain)["comparisons"]
    found["pairs"] = pairs
    lengths = sorted({row["length"] for row in found["rows"]})
    lines = []
    for variant in variants:
        tests = [one for one in pairs.get(variant, ()) if one["metric"] == metric]
        rows = {row["length"]: row for row in found["rows"] if row["variant"] == variant}
        lines.append([variant, *(cell(rows[length], metric, tests) for length in lengths)])
    yield from ["", f"## {name}", "", f"{TITLES[metric]}, by the length of the text in tokens.", ""]
    yield from table(["variant", *map(str, lengths)], lines)


def main() -> None:
    """Score what is new, compare, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("--data-dir", type=Path, help="folder of corpora; default $ATTNKIT_DATA")
    options = parser.parse_args()
    before, objects, drawn = load_before(), {}, []
    body = list[str]()
    for name, metric in RECIPES.items():
        if any((options.runs / name).glob("*/seed-*/scores.json")):
            objects[name] = evaluated(options, options.runs / name)
            body += section(name, objects[name], options)
            drawn += learning_curves(find_runs([options.runs / name]), [metric], "length", note=say)
    text = json.dumps(objects, indent=1, ensure_ascii=False)
    text = text.replace(str(options.runs.resolve()), "runs").replace(str(options.runs), "runs")
    (RESULTS / "length.json").write_text(text + "\n", encoding="utf-8")
    (RESULTS / "length.svg").write_bytes(picture(drawn, "svg").data)
    facts = {
        "command": command(options, runs="RUNS", data_dir="DIR"),
        "versions": versions("attnkit", "torch"),
        "load of the machine": before,
    }
    publish("length", "Trained on short texts, tested on longer ones", facts, [*NOTES, *body])


NOTES = [
    "WikiText-2, trained on texts of 64 tokens, one seed: 1,000 updates masked, 500 causal. At",
    "each length the whole test split is cut in windows of so many tokens; of masked models the",
    "same tokens are hidden. The entropy scale multiplies scores by log n / log 64, n the number",
    "of tokens that are seen: of masked models it does nothing at 64. Stars: it differs from the",
    r"plain scores with the same positions, \* p < 0.05, \*\* p < 0.01 (paired bootstrap over",
    "windows, not corrected for the number of cells).",
    "",
    "![scores by length](length.svg)",
]


if __name__ == "__main__":
    main()
