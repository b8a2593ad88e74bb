"""Time of `attnkit report` for 27 runs, and size of its page.

    python benchmarks/report.py RUN [--data-dir DIR] [--repeats 3] [--threads N]

RUN is a scored run. Its copies stand for the runs of a large comparison: the same model, other learning rates in the
recipe, and outputs from which some words are removed, scored anew. Writes results/report.md.
"""

import json
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from common import arguments, attnkit, children_seconds, cores, environment, facts, publish, say, spread, table

from attnkit.runs import Run
from attnkit.scoring import evaluation

SHAPES = ((9, 3), (27, 1))
"""Numbers of variants and seeds."""


def copy_run(run: Path, root: Path, variant: int, seed: int) -> None:
    """Copy a run as another variant and seed, with other outputs, and score it."""
    folder = root / "copies" / f"variant-{variant}" / f"seed-{seed}"
    left_out = shutil.ignore_patterns("checkpoints", "tensorboard", "scores.json", "*.stats.npz")
    shutil.copytree(run, folder, ignore=left_out)
    copy = Run(folder)
    copy.update(recipe="copies", variant=f"variant-{variant}", seed=seed, baseline="variant-0")
    train = copy.recipe.train.model_copy(update={"lr": 0.001 * (variant + 1), "seeds": (seed,)})
    copy.replace_recipe(copy.recipe.model_copy(update={"train": train}))
    recipe, chance = Run(folder).recipe, random.Random(100 * variant + seed)
    for split in recipe.eval.splits:
        texts = copy.output_path(split).read_text(encoding="utf-8").splitlines()
        answers = [[(" ".join(w for w in text.split() if chance.random() > 0.005 * variant), 0.0)] for text in texts]
        with patch.object(evaluation, "answer_lines", lambda *_, a=answers, **__: iter(a)):
            evaluation.evaluate(Run(folder), [split], recipe.eval)


def measure(root: Path, threads: int) -> tuple[float, float, int]:
    """Return the seconds and processor seconds of one report, and the bytes of its page."""
    page, began, used = root / "report.html", time.perf_counter(), children_seconds()
    command, env = attnkit("report", root / "copies", "-o", page), environment(threads)
    subprocess.run(command, check=True, env=env, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began, children_seconds() - used, page.stat().st_size


def main() -> None:
    options = arguments(__doc__, "run", repeats=3, threads=cores())
    about, rows = facts(options), []
    for variants, seeds in SHAPES:
        with tempfile.TemporaryDirectory() as temporary:
            root = Path(temporary)
            say(f"{variants} variants x {seeds} seeds")
            for variant in range(variants):
                for seed in range(1, seeds + 1):
                    copy_run(options.run, root, variant, seed)
            seconds, used, sizes = zip(*(measure(root, options.threads) for _ in range(options.repeats)), strict=True)
            title = f"{variants} variants, {variants * seeds} runs"
            rows.append((title, *spread(seconds, 1), spread(used, 1)[0], f"{sizes[0] / 1e6:.2f}"))
            scores = json.loads((root / "copies/variant-0/seed-1/scores.json").read_text())
    about |= {
        "sentences": ", ".join(f"{score['sentences']:,} of {split}" for split, score in scores.items()),
        "threads": str(options.threads),
        "repeats": str(options.repeats),
    }
    publish(
        "report", "Time and size of a report", about, [table("report | median s | range | processor s | MB", rows)]
    )


if __name__ == "__main__":
    main()
