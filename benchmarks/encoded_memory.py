"""Peak memory and time of encoding and planning a generated corpus, as its rows grow.

    python benchmarks/encoded_memory.py [--rows 100000 1000000 4500000] [--folder DIR]

Each phase of each size runs in a process of its own, whose peak resident memory is read with
getrusage.  Prints a Markdown table; results/encoded-memory.md has a recorded one.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np

from attnkit.data.batch_plan import padding_share, plan
from attnkit.data.encoded import Encoded, encode
from attnkit.data.rows import Row
from attnkit.data.tokenizer import Tokenizer, subsample
from attnkit.recipe import schema

WORDS = 60_000
BATCH_TOKENS = 4096
PHASES = ("tokenizer", "encode", "plan")


def rows(number: int) -> Iterator[Row]:
    """Pairs of about 22 words a side from a Zipf-like vocabulary, lengths log-normal."""
    generator = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwyp"))
    words = ["".join(generator.choice(letters, size)) for size in generator.integers(2, 11, WORDS)]
    for start in range(0, number, 10_000):
        count = min(10_000, number - start)
        source = np.clip(generator.lognormal(2.9, 0.6, count), 2, 80).astype(int)
        target = np.clip(source * generator.normal(1.0, 0.15, count), 2, 90).astype(int)
        for lengths in zip(source.tolist(), target.tolist(), strict=True):
            ranks = WORDS ** generator.random(sum(lengths)) - 1
            drawn = [words[rank] for rank in ranks.astype(int).tolist()]
            yield Row(" ".join(drawn[: lengths[0]]), " ".join(drawn[lengths[0] :]))


class Timed:
    """Rows, and the seconds that making them took."""

    def __init__(self, made: Iterator[Row]) -> None:
        self.made = made
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        start = time.perf_counter()
        try:
            return next(self.made)
        finally:
            self.seconds += time.perf_counter() - start


def measure(phase: str, number: int, folder: Path) -> dict[str, float]:
    """Run one phase; what it took, and the peak memory of this process in MB."""
    start = time.perf_counter()
    found: dict[str, float] = {}
    if phase == "tokenizer":
        sample, _ = subsample(rows(number))
        Tokenizer.train(schema.TokenizerConfig(), sample).save(folder)
        found["rows"] = len(sample)
    elif phase == "encode":
        source = Timed(rows(number))
        encode(
            source, Tokenizer.load(folder), folder, key=str(number), max_length=256,
            too_long="drop",
        )  # fmt: skip
        start += source.seconds
        found["bytes"] = sum(file.stat().st_size for file in (folder / str(number)).iterdir())
    else:
        encoded = Encoded.open(folder / str(number))
        assert encoded.source is not None
        found["open"] = time.perf_counter() - start
        start = time.perf_counter()
        batches = plan(
            encoded.source.lengths, encoded.target.lengths, batch_tokens=BATCH_TOKENS, seed=1,
            epoch=0,
        )  # fmt: skip
        found["batches"] = len(batches)
        found["padding"] = padding_share(batches, encoded.target.lengths + 1)
    return found | {
        "seconds": time.perf_counter() - start,
        "peak": _peak(),
    }


def _peak() -> float:
    """Peak resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(numbers: list[int], folder: Path) -> Iterator[str]:
    """Lines of the table."""
    yield (
        f"Python {platform.python_version()}, numpy {version('numpy')}, "
        f"sentencepiece {version('sentencepiece')}"
    )
    yield ""
    yield (
        "| rows | tokenizer: rows used | s | peak MB | encode s | peak MB | files MB "
        "| open s | plan s | batches | peak MB |"
    )
    yield "|" + "---:|" * 11
    for number in numbers:
        results = []
        for phase in PHASES:
            command = [sys.executable, __file__, "--phase", phase, "--rows", str(number)]
            done = subprocess.run(
                [*command, "--folder", str(folder)], check=True, capture_output=True, text=True
            )
            results.append(json.loads(done.stdout))
        learned, written, planned = results
        yield (
            f"| {number:,} "
            f"| {learned['rows']:,} | {learned['seconds']:.0f} | {learned['peak']:.0f} "
            f"| {written['seconds']:.0f} | {written['peak']:.0f} | {written['bytes'] / 1e6:.0f} "
            f"| {planned['open']:.2f} | {planned['seconds']:.2f} | {planned['batches']:,} "
            f"| {planned['peak']:.0f} |"
        )


def main() -> None:
    """Read the arguments, then measure one phase or print the whole table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 4_500_000])
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--phase", choices=PHASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        print(json.dumps(measure(options.phase, options.rows[0], options.folder)))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as temporary:
        for line in report(options.rows, options.folder or Path(temporary)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
