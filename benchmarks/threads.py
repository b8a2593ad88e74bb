"""Training speed beside another program, by how OpenMP threads wait.

    python benchmarks/threads.py [--data-dir DIR] [--rounds 3] [--seconds 15]

OpenMP threads wait for each other by spinning, which is fast on an idle machine; if another program takes a core, a
thread spins until the thread it waits for gets time again. Each setting trains translation/multi30k on the idle
machine and beside one busy program; in each round every setting takes a turn, and a cell is the median over the
rounds. Writes results/threads.md.
"""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from common import arguments, cores, facts, publish, say, spread, start_updates, steady_speed, table

BUSY = [sys.executable, "-c", "while True: pass"]
ALL, ONE = {"OMP_NUM_THREADS": str(cores())}, {"OMP_NUM_THREADS": "1"}
SETTINGS: dict[str, tuple[int, Mapping[str, str]]] = {
    "spinning (OpenMP's default)": (1, ALL | {"GOMP_SPINCOUNT": "300000"}),
    "always spinning (ACTIVE)": (1, ALL | {"OMP_WAIT_POLICY": "ACTIVE"}),
    "never spinning (PASSIVE)": (1, ALL | {"OMP_WAIT_POLICY": "PASSIVE"}),
    **{f"spinning {n:,} times": (1, ALL | {"GOMP_SPINCOUNT": str(n)}) for n in (1_000, 10_000, 100_000)},
    "one thread": (1, ONE),
    f"{cores()} trainings of one thread": (cores(), ONE),
}
"""Number of trainings side by side, and environment."""


def speed(jobs: int, env: Mapping[str, str], seconds: float, work: Path) -> float:
    """Return the target tokens per second of all trainings together."""
    trainings = [start_updates(work / f"runs-{number}", "train.precision=bf16", **env) for number in range(jobs)]
    total = sum(steady_speed(training, seconds) for training in trainings)
    for training in trainings:
        training.kill()
        training.wait()
    return total


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Run busy programs in sessions of their own, to which the scheduler gives the same share as to ours."""
    processes = [subprocess.Popen(BUSY, start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    options = arguments(__doc__, rounds=3, seconds=15.0)
    about = facts(options) | {"threads": f"{cores()}, bf16"}
    found: dict[tuple[str, int], list[float]] = {(name, n): [] for name in SETTINGS for n in (0, 1)}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(options.rounds):
            for (name, programs), speeds in found.items():
                with busy(programs):
                    speeds.append(speed(*SETTINGS[name], options.seconds, Path(temporary)))
                say(f"round {number + 1}: {name}, {programs} busy: {speeds[-1]:,.0f} tokens/s")
    base, rows = statistics.median(next(iter(found.values()))), []
    for name in SETTINGS:
        both = [found[name, programs] for programs in (0, 1)]
        cells = [(*spread(values), f"{statistics.median(values) / base:.2f}") for values in both]
        rows.append([name, *cells[0], *cells[1]])
    header = "threads | idle: tokens/s | range | ratio | beside one busy program | range | ratio"
    publish("threads", "Training beside another program", about, [table(header, rows)])


if __name__ == "__main__":
    main()
