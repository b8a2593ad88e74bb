"""How long `attnkit report` takes, and how large its page is, for 27 runs.

    python benchmarks/report.py RUN --data-dir DIR [--repeats 3]

RUN is a scored run.  Its copies stand for the runs of a large comparison: the same model, other
rates in the recipe, and outputs from which some words are left out, scored anew.  Writes
results/report.md.
"""

import argparse
import json
import random
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from common import attnkit, command, cores, environment, load_before, publish, say, spread, table, versions

SHAPES = ((9, 3), (27, 1))
"""Variants and seeds."""


def copied(run: Path, root: Path, variant: int, seed: int, data_dir: Path | None) -> None:
    """A copy of a run as another variant and seed, with other outputs, scored."""
    from attnkit.runs import Run
    from attnkit.scoring import evaluation

    folder = root / "copies" / f"variant-{variant}" / f"seed-{seed}"
    left = shutil.ignore_patterns("checkpoints", "tensorboard", "scores.json", "*.stats.npz")
    shutil.copytree(run, folder, ignore=left)
    copy = Run(folder)
    copy.update(recipe="copies", variant=f"variant-{variant}", seed=seed, baseline="variant-0")
    train = copy.recipe.train.model_copy(update={"lr": 0.001 * (variant + 1), "seeds": (seed,)})
    copy.replace_recipe(copy.recipe.model_copy(update={"train": train}))
    recipe, chance = Run(folder).recipe, random.Random(100 * variant + seed)
    for split in recipe.eval.splits:
        texts = copy.output_path(split).read_text(encoding="utf-8").splitlines()
        answers = [[(" ".join(w for w in text.split() if chance.random() > 0.005 * variant), 0.0)] for text in texts]
        with patch.object(evaluation, "answer_lines", lambda *_, a=answers, **__: iter(a)):
            evaluation.evaluate(Run(folder), [split], recipe.eval, data_dir=data_dir)


def measure(root: Path, options: argparse.Namespace) -> tuple[float, float, int]:
    """Seconds of one report by the clock and of the processor, and bytes of its page."""
    page = root / "report.html"
    data = ["--data-dir", str(options.data_dir)] if options.data_dir else []
    began, spent = time.perf_counter(), children_seconds()
    subprocess.run(
        attnkit("report", root / "copies", "-o", page, *data),
        check=True,
        env=environment(options.threads),
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - began, children_seconds() - spent, page.stat().st_size


def children_seconds() -> float:
    """Seconds of the processor that finished children have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a scored run")
    parser.add_argument("--data-dir", type=Path, help="folder of corpora; default $ATTNKIT_DATA")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=cores())
    options = parser.parse_args()
    load = load_before()
    rows = []
    for variants, seeds in SHAPES:
        with tempfile.TemporaryDirectory() as temporary:
            root = Path(temporary)
            say(f"{variants} variants x {seeds} seeds")
            for variant in range(variants):
                for seed in range(1, seeds + 1):
                    copied(options.run, root, variant, seed, options.data_dir)
            measured = [measure(root, options) for _ in range(options.repeats)]
            middle, between = spread([seconds for seconds, _, _ in measured], 1)
            busy, _ = spread([seconds for _, seconds, _ in measured], 1)
            name = f"{variants} variants, {variants * seeds} runs"
            rows.append((name, middle, between, busy, f"{measured[0][2] / 1e6:.2f}"))
            scores = json.loads((root / "copies/variant-0/seed-1/scores.json").read_text())
    splits = ", ".join(f"{one['sentences']:,} of {split}" for split, one in scores.items())
    facts = {
        "command": f"`{command(options, run='RUN', data_dir='DATA')}`",
        "versions": versions("attnkit", "torch"),
        "sentences": splits,
        "started as": f"{options.threads} threads",
        "load of the machine": load,
        "repeats": str(options.repeats),
    }
    heads = ["report", "median s", "range", "processor s", "MB"]
    publish("report", "Time and size of a report", facts, table(heads, rows))


if __name__ == "__main__":
    main()
