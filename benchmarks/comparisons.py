"""Tables of shipped recipes that were trained at length, from their runs.

    python benchmarks/comparisons.py RUNS --data-dir DIR

RUNS is the folder that `attnkit train --out` wrote to.  Each recipe below that has scored runs
there gets a section in results/comparisons.md, with what was overridden and which rows are
unfinished, and an object in results/comparisons.json, whose rows name their run and the SHA-256 of
its weights.  Run it again whenever a row is finished; what the files hold of other recipes stays.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, attnkit, environment, keep_others, publish_part, say

from attnkit.errors import MissingInputError
from attnkit.recipe import difference, load
from attnkit.recipe.find import shipped
from attnkit.runs import Run

RECIPES = (
    "translation/multi30k", "translation/baselines", "translation/norm", "translation/zoo",
    "translation/tailr", "summarization/acl-titles",
    "dialogue/personachat", "language-modeling/wikitext-2",
    "language-modeling/tailr", "classification/sst2", "transfer/pretrain",
)  # fmt: skip
TASKS = tuple(f"transfer/{task}" for task in ("sst2", "cola", "rte", "boolq", "copa", "wic"))
"""Recipes whose variants are averaged too."""
TITLE = "Comparisons at length"
AVERAGE = "transfer: average over tasks"
ORDER = (*RECIPES, *TASKS, AVERAGE)
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


def state(name: str, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """What was overridden in finished runs, their versions, and which are unfinished."""
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
    shipped_as = f"with {'; '.join(changes)}" if changes else "as it is shipped"
    yield "recipe", f"`{name}`, {shipped_as}"
    yield "versions", "; ".join(versions)
    if unfinished:
        yield "unfinished rows, about which nothing is said here", ", ".join(unfinished)


def main() -> None:
    """Score what is new, and write its sections of both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("--data-dir", type=Path, help="folder of corpora; default $ATTNKIT_DATA")
    options = parser.parse_args()
    trained = {
        name: os.path.relpath(options.runs.joinpath(*name.split("/")), options.runs.parent)
        for name in (*RECIPES, *TASKS)
        if any(options.runs.joinpath(*name.split("/")).glob("*/seed-*/scores.json"))
    }
    objects: dict[str, Any] = {}
    for name, folder in trained.items():
        say(name)
        section(name, [folder], dict(state(name, options)), options)
        objects[name] = json.loads(evaluated([folder], "json", options))
    tasks = [trained[name] for name in TASKS if name in trained]
    if len(tasks) > 1:
        section(AVERAGE, tasks, {}, options, "--average")
        averages = json.loads(evaluated(tasks, "json", options, "--average"))["averages"]
        objects[AVERAGE] = {"averages": averages}
    keep_others(RESULTS / "comparisons.json", objects, ORDER)


def section(
    name: str, folders: Sequence[str], facts: dict[str, str], options: argparse.Namespace,
    *more: str,
) -> None:  # fmt: skip
    """Write the section of a table that `attnkit eval` prints."""
    _, _, text = evaluated(folders, "markdown", options, *more).split("\n", 2)
    publish_part("comparisons", TITLE, name, ORDER, facts, text.strip().split("\n"))


if __name__ == "__main__":
    main()
