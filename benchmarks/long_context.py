"""Questions with 1 to 32 passages, for a model that was trained on single passages.

    python benchmarks/long_context.py

Trains long-context/passages unless `runs` has a finished run of it, evaluates the splits test, ordered and coupled,
and writes results/long-context.md.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common import arguments, facts, json_of, output, publish, table

RECIPE = "long-context/passages"
SPLITS = {
    "test": "One passage answers",
    "ordered": "The answer depends on the order of three chapters",
    "coupled": "The answer needs two passages together",
}
NAMES = {"answer-match": "exact match", "answer-f1": "F1", "context-found": "context found"}


def scores(found: Mapping[str, Any], counts: list[int], split: str, metric: str) -> Iterator[list[str]]:
    """Yield the rows of one table: a method and its score with every number of passages."""
    values = {
        (row["method"], row["contexts"]): row["metrics"][metric]["score"]
        for row in found["rows"]
        if row["split"] == split and metric in row["metrics"]
    }
    p_values = {
        (test["method"], test["contexts"]): test["p_corrected"]
        for test in found["comparisons"]
        if (test["split"], test["metric"]) == (split, metric)
    }
    for method in dict.fromkeys(method for method, _ in values):
        cells = []
        for key in ((method, count) for count in counts):
            p = p_values.get(key)
            mark = "" if p is None or p >= 0.05 else r"\*\*" if p < 0.01 else r"\*"
            cells.append(f"{values[key]:.1f}{mark}" if key in values else "-")
        yield [method, *cells]


def main() -> None:
    about = facts(arguments(__doc__))
    output("train", RECIPE, "--quiet")
    found = json_of("eval", RECIPE, *(word for split in SPLITS for word in ("--split", split)))
    first = found["rows"][0]
    minutes = json.loads((Path(first["run"]) / "manifest.json").read_text("utf-8"))["finished"]["seconds"] / 60
    about |= {
        "model": f"{first['parameters']:,} parameters, trained on single passages for {minutes:.1f} minutes",
        "questions": f"{first['sentences']} of each split",
        "marks": f"different from {first['method']}: \\* p < 0.05, \\*\\* p < 0.01 (paired bootstrap over questions, "
        "two-sided, Holm's correction over the methods)",
    }
    counts, body = sorted({row["contexts"] for row in found["rows"]}), list[str]()
    for split, title in SPLITS.items():
        for metric, name in NAMES.items():
            lines = list(scores(found, counts, split, metric))
            if lines and (split == "test" or metric != "context-found"):
                body += [f"## {split}, {name}", f"{title}.", table([f"{name}, passages:", *counts], lines)]
    publish("long-context", "More passages than a model was trained for", about, body)


if __name__ == "__main__":
    main()
