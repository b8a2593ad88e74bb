"""Whether a failing or full disk during a training causes damage, through the command line.

    python benchmarks/disk_faults.py [--count 400]

A training with three saves, an encoding of its corpus before and a test set scored after it performs about a thousand
operations on the disk. In each trial one of them, drawn evenly from the parts of the run, fails with ENOSPC, EIO or
EACCES, or the process is killed there with SIGKILL. The command must end with the exit code for the error and one
line, or as if nothing had happened. The next start must give the weights, log and outputs of a training without
faults, and leave no temporary files.

Then a file system of 16 MB (if the machine allows a process to mount one) fills up after the first checkpoint: exit
code 74, the checkpoint stays whole, and with space again the training ends like one without faults; a model whose
checkpoints cannot fit is refused before the first update. Writes results/disk-faults.md.
"""

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

from common import arguments, facts, publish, say, table
from helpers import disk_faults

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
"""Command that starts a process which may mount file systems that only it sees."""


def draw_faults(places: Sequence[str], count: int) -> list[tuple[int, str]]:
    """Draw numbers of operations (from 1) and kinds of faults, from every part in turn."""
    generator, found = random.Random(1), list[tuple[int, str]]()
    pools: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, place in enumerate(places, start=1):
        pools[place] += [(number, kind) for kind in disk_faults.ERRORS]
    for pool in pools.values():
        generator.shuffle(pool)
    while len(found) < count and any(pools.values()):
        found += [pool.pop() for pool in pools.values() if pool]
    return found[:count]


def full_disk() -> str:
    """Return the result of the trial with a full file system, in a namespace of its own."""
    if shutil.which(NAMESPACE[0]) is None:
        return "not tried: this machine has no `unshare`"
    done = subprocess.run([*NAMESPACE, sys.executable, __file__, "--inside"], capture_output=True, text=True)
    if done.returncode:
        say(done.stderr)
        return f"FAULT: {done.stderr.splitlines()[-1] if done.stderr else done.returncode}"
    return done.stdout.strip()


def main() -> int:
    import sacrebleu  # noqa: F401  (imported before the processes are forked)
    import torch

    import attnkit.experiment.training  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()  # so that garbage collection in the processes does not visit imported modules
    if "--inside" in sys.argv:
        print(disk_faults.fill_up())
        return 0
    options = arguments(__doc__, count=400)
    about, start = facts(options, "safetensors", "sentencepiece"), time.monotonic()
    memory = Path("/dev/shm")  # where forcing to the disk costs nothing
    counts, wrong = Counter[tuple[str, str]](), Counter[str]()
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        folder = Path(name)
        disk_faults.prepare(folder)
        recipe = folder / "recipe.yaml"
        whole = disk_faults.train(recipe, folder / "whole")
        expected = disk_faults.output_digests(folder / "whole")
        trials = draw_faults(whole.places, options.count)
        for number, (at, kind) in enumerate(trials, start=1):
            place = whole.places[at - 1]
            verdict = disk_faults.try_fault(recipe, folder / "trial", at, kind, place, expected)
            counts[place, "went on" if verdict.code == 0 else kind] += 1
            wrong[place] += bool(verdict.faults)
            if verdict.faults:
                say(f"operation {at}, {kind}: {verdict}")
            if number % 20 == 0:
                say(f"{number} of {len(trials)}")
    outcomes, operations = [*disk_faults.ERRORS, "went on"], Counter(whole.places)
    rows = [
        [place, operations[place], *(counts[place, outcome] for outcome in outcomes), wrong[place]]
        for place in disk_faults.PLACES
    ]
    about |= {
        "time": f"{(time.monotonic() - start) / 60:.0f} min",
        "result": f"**{len(trials) - sum(wrong.values())} of {len(trials)} faults caused no damage**: the right exit "
        "code, and the next start ends bit for bit like a training without faults",
        "full file system of 16 MB": full_disk(),
    }
    header = ["part", "operations", *disk_faults.ERRORS, "went on all the same", "wrong"]
    publish("disk-faults", "A disk that fails", about, [table(header, rows)])
    return bool(sum(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
