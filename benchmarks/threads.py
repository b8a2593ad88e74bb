"""What training loses when another program runs on the machine, by how OpenMP's threads wait.

    python benchmarks/threads.py --data-dir DIR [--rounds 3] [--seconds 15]

OpenMP's threads wait for each other by spinning, which is fast on a quiet machine; where another
program takes a core, a thread spins until its neighbour is given time again.  Each setting trains
translation/multi30k on the quiet machine and beside one busy program; a round asks every setting
in turn, and a cell is the median over the rounds.  Writes results/threads.md.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common import (
    UPDATES_ALONE,
    attnkit,
    command,
    cores,
    environment,
    load_before,
    publish,
    say,
    spread,
    steady_speed,
    table,
    versions,
)

SPINS = (1_000, 10_000, 100_000)
BUSY = [sys.executable, "-c", "while True: pass"]


def settings(threads: int) -> dict[str, dict[str, str]]:
    """Name -> variables; `jobs` is the number of trainings side by side."""
    active = {"OMP_WAIT_POLICY": "ACTIVE"}  # what attnkit itself sets is no part of this
    several = {"OMP_NUM_THREADS": str(threads), "jobs": "1"}
    return {
        "spinning (OpenMP's default)": {**several, "GOMP_SPINCOUNT": "300000"},
        "always spinning (ACTIVE)": {**several, **active},
        "never spinning (PASSIVE)": {**several, "OMP_WAIT_POLICY": "PASSIVE"},
        **{f"spinning {count:,} times": {**several, "GOMP_SPINCOUNT": str(count)} for count in SPINS},
        "one thread": {"OMP_NUM_THREADS": "1", "jobs": "1"},
        f"{threads} trainings of one thread": {"OMP_NUM_THREADS": "1", "jobs": str(threads)},
    }


def speed(variables: dict[str, str], options: argparse.Namespace, work: Path) -> float:
    """Target tokens a second, of all trainings together, once they are under way."""
    env = dict(variables)
    jobs = int(env.pop("jobs"))
    words = attnkit(
        *UPDATES_ALONE, "train.precision=bf16", *(["--data-dir", options.data_dir] if options.data_dir else [])
    )
    processes = [
        subprocess.Popen(
            [*words, "--out", str(work / f"runs-{number}")],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(None, ATTNKIT_CACHE=str(work / "cache"), **env),
        )
        for number in range(jobs)
    ]
    total = 0.0
    for process in processes:
        total += steady_speed(process, options.seconds)
    for process in processes:
        process.kill()
        process.wait()
    return total


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Programs in sessions of their own, which the scheduler gives the same share as ours."""
    processes = [subprocess.Popen(BUSY, start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder of corpora; default $ATTNKIT_DATA")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15, help="of each training")
    parser.add_argument("--threads", type=int, default=cores())
    options = parser.parse_args()
    load = load_before()
    chosen = settings(options.threads)
    found: dict[tuple[str, int], list[float]] = {(name, n): [] for name in chosen for n in (0, 1)}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(options.rounds):
            for name, variables in chosen.items():
                for programs in (0, 1):
                    with busy(programs):
                        rate = speed(variables, options, Path(temporary))
                    found[name, programs].append(rate)
                    say(f"round {number + 1}: {name}, {programs} busy: {rate:,.0f} tokens/s")
    base = statistics.median(found[next(iter(chosen)), 0])
    rows = []
    for name in chosen:
        quiet, beside = found[name, 0], found[name, 1]
        ratios = [statistics.median(values) / base for values in (quiet, beside)]
        rows.append([name, *spread(quiet), f"{ratios[0]:.2f}", *spread(beside), f"{ratios[1]:.2f}"])
    header = ["threads", "quiet: tokens/s", "range", "ratio", "beside one busy program", "range", "ratio"]
    facts = {
        "command": command(options, data_dir="DIR"),
        "versions": versions("attnkit", "torch"),
        "threads": f"{options.threads}, bf16",
        "load": load,
    }
    publish("threads", "Training beside another program", facts, table(header, rows))


if __name__ == "__main__":
    main()
