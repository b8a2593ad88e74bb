"""Time and peak memory of commands on many lines, and on one over-long line.

    python benchmarks/large_input.py

`generate` reads files of 10,000 to a million lines, then a file whose second line has 10 MB, with a tiny model, so
that reading and writing matter. Two variants are scored on a test set of 100,000 sentences by `train`; `eval`,
`compare`, `report` and `verify` then read their outputs. Peak memory is the maximum resident set of the process,
including Python and its libraries. Writes results/large-input.md.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import arguments, attnkit, environment, facts, publish, say, table
from helpers.mutations import RECIPE
from helpers.small import WORDS, write_corpus

SIZES, SENTENCES = (10_000, 100_000, 1_000_000), 100_000
"""Lines for `generate`, and size of the test set."""
VARIANTS = "variants: {plain: {}, linear: {model.attention: linear}}\n"
LONG = 10_000_000
"""Bytes of the over-long line."""


def write_sentences(number: int, seed: int, source: Path, target: Path) -> None:
    """Write random sentences of one to seven words, and their words backwards.

    They are never all in memory, since the memory of this process would count for the processes that it starts.
    """
    draw = random.Random(seed)
    with source.open("w", encoding="utf-8") as sources, target.open("w", encoding="utf-8") as targets:
        for _ in range(number):
            words = draw.choices(WORDS, k=draw.randint(1, 7))
            sources.write(f"{' '.join(words)}\n")
            targets.write(f"{' '.join(reversed(words))}\n")


def measured(folder: Path, *words: object) -> tuple[list[str], int, str]:
    """Return seconds and peak MB as cells, the exit code and the last line of the messages."""
    start, env = time.monotonic(), environment(1, ATTNKIT_CACHE=str(folder / "cache"))
    with (folder / "messages").open("w+b") as messages:
        child = subprocess.Popen(attnkit(*words), stdout=subprocess.DEVNULL, stderr=messages, cwd=folder, env=env)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = code = os.waitstatus_to_exitcode(status)
        messages.seek(0)
        lines = messages.read().decode("utf-8", "replace").splitlines()
    say(f"{' '.join(map(str, words))}: exit {code}")
    peak = usage.ru_maxrss / (1024 if sys.platform == "linux" else 1 << 20)
    return [f"{time.monotonic() - start:.1f}", f"{peak:.0f}"], code, lines[-1] if lines else ""


def prepare(folder: Path) -> None:
    """Write the corpus, its large test set and the recipe."""
    write_corpus(folder)
    write_sentences(SENTENCES, 1, folder / "test.source", folder / "test.target")
    recipe = RECIPE.format(folder).replace("bootstrap: 0", "bootstrap: 1000")
    recipe = recipe.replace("min_length: 4", "min_length: 2").replace(", perplexity", ", chrf")
    (folder / "recipe.yaml").write_text(recipe + VARIANTS, encoding="utf-8")


def generation(folder: Path, run: Path) -> list[list[str]]:
    """Return the rows of `generate`, one a size, then the one with the over-long line."""
    rows, source, output = [], folder / "input.txt", folder / "output.txt"
    for size in SIZES:
        write_sentences(size, 2, source, folder / "target.txt")
        cells, code, _ = measured(folder, "generate", run, source, "--output", output)
        written = sum(1 for _ in output.open("rb"))
        if code or written != size:
            raise SystemExit(f"generate: exit {code}, {written} of {size} lines")
        rows.append([f"`generate`, {size:,} lines", *cells, "0"])
    source.write_bytes(b"red dog\n" + b"red dog " * (LONG // 8) + b"\nred dog\n")
    cells, code, message = measured(folder, "generate", run, source, "--output", output)
    text = f"{code}: {message.replace(str(source), 'input.txt')}"
    return [*rows, [f"`generate`, a line of {LONG / 1e6:.0f} MB", *cells, text]]


def main() -> None:
    about = facts(arguments(__doc__), "sacrebleu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        runs = folder / "runs/recipe"
        plain, linear = (runs / variant / "seed-1" for variant in ("plain", "linear"))
        commands: dict[str, tuple[object, ...]] = {
            "train, scoring included": ("train", "recipe.yaml", "--quiet"),
            "eval": ("eval", runs),
            "eval --fresh": ("eval", runs, "--fresh"),
            "compare": ("compare", plain, linear),
            "report": ("report", runs, "--output", "report.html"),
            "verify": ("verify", runs),
        }
        rows = []
        for title, words in commands.items():
            cells, code, message = measured(folder, *words)
            if code:
                raise SystemExit(f"{title}: exit {code}: {message}")
            rows.append([f"`{title}`, 2 x {SENTENCES:,} sentences", *cells, "0"])
        rows = generation(folder, plain) + rows
    header = "command | seconds | peak MB | exit code"
    publish("large-input", "Many lines, and a long one", about, [table(header, rows)])


if __name__ == "__main__":
    main()
