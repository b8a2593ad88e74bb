"""Tables of shipped recipes that were trained at length, from their runs.

    python benchmarks/comparisons.py RUNS --data-dir DIR

RUNS is the folder that `attnkit train --out` wrote to.  Each recipe below gets a section in
results/comparisons.md, with what was overridden and which rows are unfinished, and an object in
results/comparisons.json, whose rows name their run and the SHA-256 of its weights.  Run it again
whenever a row is finished: both files are written anew.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from common import RESULTS, attnkit, environment, machine, say

from attnkit.errors import MissingInputError
from attnkit.recipe import difference, load
from attnkit.recipe.find import shipped
from attnkit.runs import Run

RECIPES = (
    "translation/multi30k", "translation/baselines", "translation/norm", "translation/zoo",
    "summarization/acl-titles", "summarization/scitldr", "dialogue/personachat",
    "dialogue/dailydialog", "language-modeling/tailr", "transfer/pretrain", "classification/sst2",
)  # fmt: skip
TASKS = tuple(f"transfer/{task}" for task in ("sst2", "cola", "rte", "boolq", "copa", "wic"))
"""Recipes whose variants are averaged too."""
NOT_COMPARED = ("train.seeds", "train.precision", "eval.bootstrap")
"""Keys that runs may differ in from their recipe without notice."""


def evaluated(folders: Sequence[str], format: str, options: argparse.Namespace, *more: str) -> str:
    """What `attnkit eval` prints of the runs of recipes; scores that are known are read."""
    data = ["--data-dir", options.data_dir.resolve()] if options.data_dir else []
    words = attnkit("eval", *folders, "--format", format, *more, *data)
    done = subprocess.run(
        words, cwd=options.runs.parent, env=environment(1), capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(folders)}: {done.stderr}")
    return done.stdout


def rows_of(name: str, options: argparse.Namespace) -> Iterator[tuple[str, int, Run | None]]:
    """Every variant and seed of a recipe that there is a run of, or that has none yet."""
    for variant in load(shipped()[name]).variants:
        folder = options.runs.joinpath(*name.split("/"), variant)
        seeds = sorted(int(path.name.removeprefix("seed-")) for path in folder.glob("seed-*"))
        for seed in seeds or [1]:
            try:
                yield variant, seed, Run.open(folder / f"seed-{seed}")
            except MissingInputError:
                yield variant, seed, None


def state(name: str, options: argparse.Namespace) -> Iterator[str]:
    """Lines on what was overridden in finished runs, and on unfinished ones."""
    variants, changes, unfinished = load(shipped()[name]).variants, dict[str, None](), []
    versions = dict[str, None]()
    for variant, seed, run in rows_of(name, options):
        if run is None or not run.finished:
            unfinished.append(f"{variant} (seed {seed}{'' if run is None else ', begun'})")
            continue
        manifest = run.manifest
        versions[f"Python {manifest['python']}, torch {manifest['torch']}"] = None
        changes |= {
            line: None
            for line in difference(variants[variant], run.recipe)
            if not line.startswith(NOT_COMPARED)
        }
    yield f"- recipe: `{name}`, " + (
        f"with {'; '.join(changes)}" if changes else "as it is shipped"
    )
    yield f"- versions: {'; '.join(versions)}"
    if unfinished:
        yield f"- unfinished rows, about which nothing is said here: {', '.join(unfinished)}"


def main() -> None:
    """Score what is new, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("--data-dir", type=Path, help="folder of corpora; default $ATTNKIT_DATA")
    options = parser.parse_args()
    lines = [
        "# Comparisons at length", "",
        "Written by `python benchmarks/comparisons.py RUNS`. The same numbers, with the hashes of",
        "the weights that they come from, are in `comparisons.json`; what they say of published",
        "statements is in [claims](claims.md). Trainings ran beside other work, so their",
        "speeds do not compare.", "",
        f"- date: {date.today().isoformat()}", f"- machine: {machine()}", "",
    ]  # fmt: skip
    objects: dict[str, Any] = {}
    tasks = []
    for name in (*RECIPES, *TASKS):
        folder = options.runs.joinpath(*name.split("/"))
        if not any(folder.glob("*/seed-*/scores.json")):
            continue
        say(name)
        shown = [os.path.relpath(folder, options.runs.parent)]
        tasks += shown if name in TASKS else []
        table = evaluated(shown, "markdown", options).split("\n", 2)[2]
        lines += [f"## {name}", "", *state(name, options), "", *table.rstrip().split("\n"), ""]
        objects[name] = json.loads(evaluated(shown, "json", options))
    if len(tasks) > 1:
        table = evaluated(tasks, "markdown", options, "--average").split("\n", 2)[2]
        lines += ["## transfer: average over tasks", "", *table.rstrip().split("\n"), ""]
        averages = json.loads(evaluated(tasks, "json", options, "--average"))["averages"]
        objects["transfer"] = {"averages": averages}
    (RESULTS / "comparisons.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    text = json.dumps(objects, indent=1, ensure_ascii=False)
    (RESULTS / "comparisons.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
