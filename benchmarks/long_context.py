"""Questions asked with 1 to 32 passages of a model that was trained on single ones.

    python benchmarks/long_context.py [--out RUNS] [--recipe long-context/passages]

Trains the recipe where RUNS has no finished run of it, asks the splits test, ordered and coupled,
and writes results/long-context.md.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import attnkit, command, environment, load_before, publish, say, table, versions

SPLITS = {
    "test": "One passage answers",
    "ordered": "The answer depends on the order of three chapters",
    "coupled": "The answer needs two passages together",
}
NAMES = {"answer-match": "exact match", "answer-f1": "F1", "context-found": "context found"}
Object = Mapping[str, Any]


def run(*words: str | Path) -> str:
    """Standard output of an attnkit command."""
    done = subprocess.run(attnkit(*words), env=environment(), stdout=subprocess.PIPE, encoding="utf-8", check=True)
    return done.stdout


def scores(found: Object, split: str, metric: str) -> Iterator[list[str]]:
    """Rows of one table: a method and its score with every number of passages."""
    rows = [row for row in found["rows"] if row["split"] == split and metric in row["metrics"]]
    compared = {
        (one["method"], one["contexts"]): one["p_corrected"]
        for one in found["comparisons"]
        if (one["split"], one["metric"]) == (split, metric)
    }
    counts = sorted({row["contexts"] for row in found["rows"]})
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = []
        for count in counts:
            value = next(
                (
                    row["metrics"][metric]["score"]
                    for row in rows
                    if (row["method"], row["contexts"]) == (method, count)
                ),
                None,
            )
            p = compared.get((method, count))
            mark = "" if p is None or p >= 0.05 else "**" if p < 0.01 else "*"
            cells.append("-" if value is None else f"{value:.1f}{mark}".replace("*", r"\*"))
        yield [method, *cells]


def tables(found: Object) -> list[str]:
    """All tables, split by split."""
    counts = sorted({row["contexts"] for row in found["rows"]})
    body: list[str] = []
    for split, about in SPLITS.items():
        for metric, name in NAMES.items():
            lines: Sequence[list[str]] = list(scores(found, split, metric))
            if lines and not (split != "test" and metric == "context-found"):
                body += [f"## {split}, {name}", "", f"{about}.", ""]
                body += [*table([f"{name}, passages:", *map(str, counts)], lines), ""]
    return body


def main() -> None:
    """Train, ask, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--recipe", default="long-context/passages")
    options = parser.parse_args()
    before, start = load_before(), time.perf_counter()
    say("training and asking")
    run("train", options.recipe, "--out", options.out, "--quiet")
    say(f"done after {time.perf_counter() - start:.0f} s")
    splits = [word for name in SPLITS for word in ("--split", name)]
    found = json.loads(run("eval", options.recipe, "--out", options.out, *splits, "--format", "json"))
    first = found["rows"][0]
    manifest = json.loads((Path(first["run"]) / "manifest.json").read_text(encoding="utf-8"))
    facts = {
        "command": command(options, out="RUNS"),
        "versions": versions("attnkit", "torch"),
        "load": before,
        "model": f"{first['parameters']:,} parameters, trained on single passages for "
        f"{manifest['finished']['seconds'] / 60:.1f} minutes",
        "questions": f"{first['sentences']} of each split",
        "marks": f"different from {first['method']}: \\* p < 0.05, \\*\\* p < 0.01 (paired "
        "bootstrap over questions, two-sided, Holm's correction over the methods)",
    }
    publish("long-context", "More passages than a model was trained for", facts, tables(found))


if __name__ == "__main__":
    main()
