"""Is damage to the files of a run ever answered in silence?

    python benchmarks/mutations.py [--count 2000] [--minutes 60] [--jobs 2] [--seed 1]

Half of the mutations are of a finished run, half of one that was stopped in the middle and averages
the weights of three validations.  Each changes one file: a flipped bit, spliced bytes, truncation,
an emptied or missing file, a swap with another file or with that of another run, a pipe or a folder
in its place, JSON of wrong types, tensors of wrong shapes, missing, added or with NaN; the last
three also with all hashes made to agree.  A finished run is then verified, used by `generate`,
scored by `eval` and given to `train`; a stopped one is resumed by `train`.  Each command must
refuse in one line with an exit code that says so, or answer exactly as with the undamaged run:
outputs, scores, weights and loss log.  Stops after --minutes.  Writes results/mutations.md and
results/mutations.json.
"""

import argparse
import gc
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, command, load_before, publish, say, table, versions

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

ROUND = 40
"""Mutations after which the time is looked at."""
VERDICTS = ("same", "refused", "silent", "traceback", "hanging")


def made(folder: Path) -> list[Any]:
    """The two runs."""
    from helpers.mutations import subject

    return [subject(folder / name, finished=name == "finished") for name in ("finished", "stopped")]


def tried(subjects: Sequence[Any], folder: Path, seed: int) -> tuple[int, bool, str, list[Any]]:
    """One mutation: seed, whether of the finished run, kind, and what each command made of it."""
    from helpers.mutations import outcomes

    of = subjects[seed % 2]
    kind, found = outcomes(of, folder / f"copy-{os.getpid()}", seed)
    return seed, of.finished, kind, [tuple(outcome) for outcome in found]


def begin() -> None:
    """One thread; trainings, which collect garbage, need not look through imported modules."""
    import torch
    from helpers import mutations  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()


def results(
    options: argparse.Namespace, folder: Path
) -> Iterator[tuple[int, bool, str, list[Any]]]:
    """Outcomes until all are there or the time is over."""
    begin()
    subjects = made(folder)
    seeds = range(1000 * options.seed, 1000 * options.seed + options.count)
    until = time.monotonic() + 60 * options.minutes
    with multiprocessing.get_context("spawn").Pool(options.jobs, begin) as pool:
        work = partial(tried, [of._replace(answers=dict(of.answers)) for of in subjects], folder)
        for first in range(0, len(seeds), ROUND):
            yield from pool.map(work, seeds[first : first + ROUND], chunksize=1)
            say(f"{min(first + ROUND, len(seeds))} of {len(seeds)}")
            if time.monotonic() > until:
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    load, start = load_before(), time.monotonic()
    fast = Path("/dev/shm")  # where forcing to the disk costs nothing
    counts: Counter[tuple[str, str, str]] = Counter()
    kinds: Counter[tuple[str, str]] = Counter()
    faults: list[dict[str, Any]] = []
    number = 0
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as name:
        os.environ["ATTNKIT_CACHE"] = os.environ["XDG_CONFIG_HOME"] = f"{name}/cache"
        for seed, finished, kind, found in results(options, Path(name)):
            number += 1
            state = "finished" if finished else "stopped"
            for what, verdict, detail in found:
                counts[state, what, verdict] += 1
                if what == "train":
                    kinds[kind.partition(": ")[2], verdict] += 1
                if verdict not in ("same", "refused"):
                    told = detail.replace(name, "")[-300:]
                    faults.append({"seed": seed, "state": state, "kind": kind, "command": what,
                                   "verdict": verdict, "detail": told})  # fmt: skip
    asked = sorted({(state, what) for state, what, _ in counts})
    rows = [
        [state, f"`{what}`", *(counts[state, what, verdict] for verdict in VERDICTS)]
        for state, what in asked
    ]
    by_kind = [
        [kind, *(kinds[kind, verdict] for verdict in VERDICTS)]
        for kind in sorted({kind for kind, _ in kinds})
    ]
    wrong = len({fault["seed"] for fault in faults})
    facts = {
        "command": f"`{command(options)}`",
        "versions": versions("torch", "safetensors", "pydantic"),
        "load of the machine": load,
        "time": f"{(time.monotonic() - start) / 60:.0f} min",
        "result": f"**{number - wrong} of {number} mutations were refused or without effect**; "
        f"{wrong} were answered otherwise, with a traceback or not at all",
    }
    body = [
        *table(["run", "command", *VERDICTS], rows, left=2), "",
        "By kind of damage, what `train` did:", "",
        *table(["damage", *VERDICTS], by_kind), "", "All faults: `mutations.json`.",
    ]  # fmt: skip
    publish("mutations", "Damaged runs", facts, body)
    told = {"mutations": number, "commands": [
        {"run": state, "command": what, **{v: counts[state, what, v] for v in VERDICTS}}
        for state, what in asked
    ], "faults": faults}  # fmt: skip
    (RESULTS / "mutations.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
