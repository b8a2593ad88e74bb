"""Time and peak memory of commands on many lines, and on one line that is too long.

    python benchmarks/large_input.py [--lines 10000 100000 1000000] [--sentences 100000]

`generate` reads files of `--lines` lines, then a file whose second line has 10 MB, with a model so
small that reading and writing count.  Two variants are scored on a test set of `--sentences`
sentences by `train`; `eval`, `compare`, `report` and `verify` then read their outputs.  Peak memory
is the largest resident set of the process, Python and its libraries included.  Writes
results/large-input.md.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import ROOT, attnkit, command, environment, load_before, publish, say, table, versions

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers.mutations import RECIPE  # noqa: E402
from helpers.small import WORDS, write_corpus  # noqa: E402

VARIANTS = "variants: {plain: {}, linear: {model.attention: linear}}\n"
LONG = 10_000_000
"""Bytes of the line that is too long."""


def write_sentences(number: int, seed: int, source: Path, target: Path) -> None:
    """Made-up sentences of one to seven words, and the same backwards; never all in memory.

    What this process needs counts as memory of the processes that it starts.
    """
    draw = random.Random(seed)
    with source.open("w", encoding="utf-8") as one, target.open("w", encoding="utf-8") as other:
        for _ in range(number):
            words = draw.choices(WORDS, k=draw.randint(1, 7))
            one.write(f"{' '.join(words)}\n")
            other.write(f"{' '.join(reversed(words))}\n")


def measured(folder: Path, *words: str | Path) -> tuple[float, float, int, str]:
    """Seconds, peak MB, exit code and the last line of its messages."""
    start = time.monotonic()
    with (folder / "messages").open("w+b") as messages, open(os.devnull, "wb") as nothing:
        child = subprocess.Popen(
            attnkit(*words),
            stdout=nothing,
            stderr=messages,
            cwd=folder,
            env=environment(1, ATTNKIT_CACHE=str(folder / "cache")),
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = code = os.waitstatus_to_exitcode(status)
        messages.seek(0)
        told = messages.read().decode("utf-8", "replace").splitlines()
    say(f"{' '.join(map(str, words))}: exit {code}")
    peak = usage.ru_maxrss / (1024 if sys.platform == "linux" else 1 << 20)
    return time.monotonic() - start, peak, code, told[-1] if told else ""


def prepare(folder: Path, number: int) -> None:
    """The corpus, its large test set and the recipe."""
    write_corpus(folder)
    write_sentences(number, 1, folder / "test.source", folder / "test.target")
    recipe = RECIPE.format(folder).replace("bootstrap: 0", "bootstrap: 1000")
    recipe = recipe.replace("min_length: 4", "min_length: 2").replace(", perplexity", ", chrf")
    (folder / "recipe.yaml").write_text(recipe + VARIANTS, encoding="utf-8")


def generation(folder: Path, run: Path, sizes: Sequence[int]) -> list[list[str]]:
    """Rows of `generate`, one a size, then the one with the long line."""
    rows, source, output = [], folder / "input.txt", folder / "output.txt"
    for size in sizes:
        write_sentences(size, 2, source, folder / "target.txt")
        seconds, peak, code, _ = measured(folder, "generate", run, source, "--output", output)
        written = sum(1 for _ in output.open("rb"))
        if code or written != size:
            raise SystemExit(f"generate: exit {code}, {written} of {size} lines")
        rows.append([f"`generate`, {size:,} lines", f"{seconds:.1f}", f"{peak:.0f}", "0"])
    with source.open("wb") as file:
        file.write(b"red dog\n")
        for _ in range(LONG // 8):
            file.write(b"red dog ")
        file.write(b"\nred dog\n")
    seconds, peak, code, told = measured(folder, "generate", run, source, "--output", output)
    what = told.replace(str(source), "input.txt")
    rows.append([f"`generate`, a line of {LONG / 1e6:.0f} MB", f"{seconds:.1f}", f"{peak:.0f}", f"{code}: {what}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--sentences", type=int, default=100_000, help="of the test set")
    options = parser.parse_args()
    load = load_before()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, options.sentences)
        runs = folder / "runs/recipe"
        one, other = (runs / variant / "seed-1" for variant in ("plain", "linear"))
        scoring: dict[str, Sequence[str | Path]] = {
            "train, scoring included": ("train", "recipe.yaml", "--quiet"),
            "eval": ("eval", runs),
            "eval --fresh": ("eval", runs, "--fresh"),
            "compare": ("compare", one, other),
            "report": ("report", runs, "--output", "report.html"),
            "verify": ("verify", runs),
        }
        rows = []
        for what, words in scoring.items():
            seconds, peak, code, told = measured(folder, *words)
            if code:
                raise SystemExit(f"{what}: exit {code}: {told}")
            text = f"`{what}`, 2 x {options.sentences:,} sentences"
            rows.append([text, f"{seconds:.1f}", f"{peak:.0f}", "0"])
        rows = generation(folder, one, options.lines) + rows
    facts = {
        "command": f"`{command(options)}`",
        "versions": versions("attnkit", "torch", "sacrebleu"),
        "load of the machine": load,
    }
    header = ["command", "seconds", "peak MB", "exit code"]
    publish("large-input", "Many lines, and a long one", facts, table(header, rows))


if __name__ == "__main__":
    main()
