"""A whole `attnkit train` on a disk that fails at its k-th operation, and what is left of it.

Each training is a process of its own, forked from one that has imported torch.
"""

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attnkit.cli import main
from attnkit.data.corpus_files import SETTLED
from attnkit.runs import Run
from attnkit.storage.files import sha256_file
from attnkit.train import checkpoint
from helpers.faults import FaultyDisk, use_disk
from helpers.mutations import RECIPE
from helpers.small import write_corpus

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES, "SIGKILL": 0}
"""Kinds of faults; 0 kills the process."""
EXIT_CODES = {errno.ENOSPC: 74, errno.EIO: 74, errno.EACCES: 73}
PLACES = {
    "checkpoint": "/checkpoints",
    "outputs and scores": "/outputs|/scores.json",
    "encoded corpus": "/cache/encoded",
    "tokenizer": "/cache",
    "run": "",
}
"""Pattern of the paths of operations by what they write; the first that matches counts."""
FILL = -1
"""Instead of a fault: fill the file system before the checkpoint of the second update."""


class FailingDisk(FaultyDisk):
    """A disk that notes what each operation writes, and that may kill the process or fill the file system."""

    def _step(self, path: Path) -> None:
        if self.count == 0:
            self.places: list[str] = []
        place = next(place for place, pattern in PLACES.items() if re.search(pattern, str(path)))
        self.places.append(place)
        if self.count + 1 == self._at and self._fault == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == FILL and place == "checkpoint" and "/step-2" in str(path):
            fill(path)
        super()._step(path)


def fill(path: Path) -> None:
    """Fill the file system of a path, except for less space than a checkpoint needs."""
    root = next(parent for parent in path.parents if (parent / "train.source").exists())
    filler = root / "filler"
    if not filler.exists():
        filler.write_bytes(bytes(shutil.disk_usage(root).free - 4096))


class Attempt(NamedTuple):
    """The end of a training."""

    code: int
    """Exit code, negative for a signal."""
    error: str
    places: Sequence[str]
    """What each disk operation has written; empty if the process was killed."""


class Outcome(NamedTuple):
    """One fault and its consequences."""

    place: str
    kind: str
    code: int
    """Exit code of the training with the fault."""
    faults: Sequence[str]
    """Wrong behavior; empty if there was none."""


def prepare(folder: Path) -> None:
    """Write a corpus and a recipe with three validations, an average and a score."""
    folder.mkdir(parents=True, exist_ok=True)
    write_corpus(folder)
    text = RECIPE.format(folder).replace("steps: 10", "steps: 3").replace("every: 2", "every: 1")
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    time.sleep(2 * SETTLED / 1e9)  # so that every training hashes the files equally often


def train(recipe: Path, out: Path, at: int = 0, fault: int = 0) -> Attempt:
    """Run `attnkit train` in a forked process; its disk operation number `at` (from 1) fails."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
            os.environ["ATTNKIT_CACHE"] = str(out / "cache")
            words = ("train", str(recipe), "--out", str(out / "runs"), "--device", "cpu", "--quiet")
            with use_disk(FailingDisk(at, fault)) as disk:
                code = main(words)
            with os.fdopen(writer, "w") as pipe:
                json.dump([sys.stderr.getvalue(), disk.__dict__["places"]], pipe)
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        error, places = json.loads(pipe.read() or '["", []]')
    return Attempt(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), error, places)


def output_digests(out: Path) -> tuple[str, str, str]:
    """Return SHA-256 of weights, log and outputs."""
    run = Run.open(out / "runs/recipe/base/seed-1")
    return sha256_file(run.path / "model.safetensors"), run.log.digest(), sha256_file(run.output_path("test"))


def try_fault(recipe: Path, out: Path, at: int, kind: str, place: str, expected: tuple[str, str, str]) -> Outcome:
    """Train with one fault, then train again without; check the messages, the results and the files left."""
    faults = []
    fault = ERRORS[kind]
    first = train(recipe, out, at, fault)
    allowed = {-signal.SIGKILL} if kind == "SIGKILL" else {0, EXIT_CODES[fault]}
    errors = [line for line in first.error.splitlines() if line.startswith("attnkit: error: ")]
    if first.code not in allowed or (first.code > 0 and len(errors) != 1):
        faults.append(f"exit {first.code}: {first.error[-300:]}")
    second = train(recipe, out)
    if second.code:
        faults.append(f"the next start: exit {second.code}: {second.error[-300:]}")
    elif output_digests(out) != expected:
        faults.append("the next start has other results")
    elif "damaged" in second.error:
        faults.append(f"the next start found damage: {second.error[-300:]}")
    if left := sorted(out.rglob("*.tmp-*")):
        faults.append(f"left by the next start: {left}")
    shutil.rmtree(out)
    return Outcome(place, kind, first.code, faults)


def fill_up() -> str:
    """Fill a file system of 16 MB after a checkpoint; requires a namespace in which mounting is allowed.

    Return a summary. Raise AssertionError if anything is lost.
    """
    folder = Path(tempfile.mkdtemp())
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], check=True)
    prepare(folder)
    recipe, filler = folder / "recipe.yaml", folder / "filler"
    assert train(recipe, folder / "whole").code == 0
    expected = output_digests(folder / "whole")
    shutil.rmtree(folder / "whole")
    small = recipe.read_text(encoding="utf-8")

    recipe.write_text(small.replace("width: 8", "width: 512"), encoding="utf-8")
    too_large = train(recipe, folder / "large")
    assert too_large.code == 74, too_large
    assert "are needed" in too_large.error, too_large
    shutil.rmtree(folder / "large")

    recipe.write_text(small, encoding="utf-8")
    out = folder / "small"
    first = train(recipe, out, fault=FILL)
    run = Run.open(out / "runs/recipe/base/seed-1")
    assert first.code == 74, first
    assert "No space left on device" in first.error, first
    steps = run.checkpoint_steps()
    assert steps, first
    assert checkpoint.fault_of(run.checkpoints / f"step-{steps[0]}") is None
    filler.unlink()
    assert train(recipe, out).code == 0
    assert output_digests(out) == expected
    return (
        f"exit 74 in the save after step {steps[0]}, whose checkpoint stayed undamaged; with space again, training "
        "ended with the same files, bit for bit; a model that does not fit: exit 74 before the first update"
    )
