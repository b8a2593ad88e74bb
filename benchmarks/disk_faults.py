"""Does a disk that fails during a training cost anything?  Through the command line.

    python benchmarks/disk_faults.py [--count 400] [--seed 1]

A training with three saves, its corpus encoded first and its test set scored in the end, makes
about a thousand operations on the disk.  In each trial one of them, drawn evenly from the parts of
the run, fails with ENOSPC, EIO or EACCES, or the process is killed there with SIGKILL.  The command
must end with the exit code that says so and one line, or as if nothing had happened.  The next
start must end with the weights, log and outputs of a training without faults, and leave no
temporary name.

Then a file system of 16 MB (where the machine lets a process mount one) fills up behind the first
checkpoint: exit code 74, that checkpoint stays whole, and with space again the training ends as one
without faults; a model whose checkpoints cannot fit is refused before the first update.  Writes
results/disk-faults.md.
"""

import argparse
import gc
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from common import ROOT, command, load_before, publish, say, table, versions

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers import disk_faults  # noqa: E402

OWN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
"""Where a process may mount what only it sees."""


def drawn(places: Sequence[str], count: int, seed: int) -> list[tuple[int, str]]:
    """Operations (from 1) and kinds of faults, from every part in turn."""
    generator = random.Random(seed)
    pools: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, place in enumerate(places, start=1):
        pools[place] += [(number, kind) for kind in disk_faults.ERRORS]
    for pool in pools.values():
        generator.shuffle(pool)
    found: list[tuple[int, str]] = []
    while len(found) < count and any(pools.values()):
        found += [pool.pop() for pool in pools.values() if pool]
    return found[:count]


def full_disk() -> str:
    """The trial with a full file system, in a namespace of its own; what came of it."""
    if shutil.which(OWN_NAMESPACE[0]) is None:
        return "not tried: this machine has no `unshare`"
    done = subprocess.run([*OWN_NAMESPACE, sys.executable, __file__, "--inside"], capture_output=True, text=True)
    if done.returncode:
        say(done.stderr)
        return f"FAULT: {done.stderr.splitlines()[-1] if done.stderr else done.returncode}"
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=400, help="faults")
    parser.add_argument("--seed", type=int, default=1, help="of their choice")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    import sacrebleu  # noqa: F401  (what the processes find imported)
    import torch

    import attnkit.experiment.training  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()  # each process collects garbage, and need not look through imported modules
    if options.inside:
        print(disk_faults.fill_up())
        return 0
    load, start = load_before(), time.monotonic()
    fast = Path("/dev/shm")  # where forcing to the disk costs nothing
    counts: Counter[tuple[str, str]] = Counter()
    wrong: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as name:
        folder = Path(name)
        disk_faults.prepare(folder)
        whole = disk_faults.train(folder / "recipe.yaml", folder / "whole")
        wanted = disk_faults.output_digests(folder / "whole")
        trials = drawn(whole.places, options.count, options.seed)
        for number, (at, kind) in enumerate(trials, start=1):
            place = whole.places[at - 1]
            told = disk_faults.try_fault(folder / "recipe.yaml", folder / "trial", at, kind, place, wanted)
            counts[place, "went on" if told.code == 0 else kind] += 1
            wrong[place] += bool(told.faults)
            if told.faults:
                say(f"operation {at}, {kind}: {told}")
            if number % 20 == 0:
                say(f"{number} of {len(trials)}")
    outcomes = [*disk_faults.ERRORS, "went on"]
    operations = Counter(whole.places)
    rows = [
        [place, operations[place], *(counts[place, one] for one in outcomes), wrong[place]]
        for place in disk_faults.PLACES
    ]
    facts = {
        "command": f"`{command(options)}`",
        "versions": versions("attnkit", "torch", "safetensors", "sentencepiece"),
        "load of the machine": load,
        "time": f"{(time.monotonic() - start) / 60:.0f} min",
        "result": f"**{len(trials) - sum(wrong.values())} of {len(trials)} faults cost nothing**: "
        "the right exit code, and the next start ends bit for bit as a training without faults",
        "full file system of 16 MB": full_disk(),
    }
    header = ["part", "operations", *disk_faults.ERRORS, "went on all the same", "wrong"]
    publish("disk-faults", "A disk that fails", facts, table(header, rows))
    return bool(sum(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
