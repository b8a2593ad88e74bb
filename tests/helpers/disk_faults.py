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
"""Kinds of faults; 0 is the end of the process."""
REFUSED = {errno.ENOSPC: 74, errno.EIO: 74, errno.EACCES: 73}
"""The exit code that belongs to each."""
PLACES = {
    "checkpoint": "/checkpoints",
    "outputs and scores": "/outputs|/scores.json",
    "encoded corpus": "/cache/encoded",
    "tokenizer": "/cache",
    "run": "",
}
"""What an operation is part of -> how its path is told; the first that fits."""
FILL = -1
"""In place of a fault: the file system is filled before the checkpoint of the second update."""
LEFT_OVER = "*.tmp-*"


class FailingDisk(FaultyDisk):
    """Counts operations by what they are part of; at number `at` one fails or the process ends."""

    def _step(self, path: Path) -> None:
        if self.count == 0:
            self.places: list[str] = []
        name = next(name for name, told in PLACES.items() if re.search(told, str(path)))
        self.places.append(name)
        if self.count + 1 == self._at and self._fault == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == FILL and name == "checkpoint" and "/step-2" in str(path):
            fill(path)
        super()._step(path)


def fill(path: Path) -> None:
    """Leave less space than a checkpoint takes where `path` is."""
    root = next(
        parent for parent in path.parents if (parent / "recipe.yaml").exists() and (parent / "train.source").exists()
    )
    filler = root / "filler"
    if not filler.exists():
        filler.write_bytes(bytes(shutil.disk_usage(root).free - 4096))


class Attempt(NamedTuple):
    """How a training ended."""

    code: int
    """Exit code, negative for a signal."""
    error: str
    places: Sequence[str]
    """What each operation of the disk was part of, where the process lived to tell."""


class Outcome(NamedTuple):
    """One fault and its consequences."""

    place: str
    kind: str
    code: int
    """Exit code of the training with the fault."""
    faults: Sequence[str]
    """What is not as it should be; empty where all is well."""


def prepare(folder: Path) -> None:
    """The corpus and a recipe with three validations, an average and a score."""
    folder.mkdir(parents=True, exist_ok=True)
    write_corpus(folder)
    text = RECIPE.format(folder).replace("steps: 10", "steps: 3").replace("every: 2", "every: 1")
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    time.sleep(2 * SETTLED / 1e9)  # so that every training hashes the files as often


def train(recipe: Path, out: Path, at: int = 0, fault: int = 0) -> Attempt:
    """`attnkit train` in a forked process, whose operation number `at` (from 1) fails."""
    ears, mouth = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
            os.environ["ATTNKIT_CACHE"] = str(out / "cache")
            words = ("train", str(recipe), "--out", str(out / "runs"), "--device", "cpu", "--quiet")
            with use_disk(FailingDisk(at, fault)) as disk:
                code = main(words)
            told = [sys.stderr.getvalue(), disk.__dict__["places"]]
            with os.fdopen(mouth, "w") as pipe:
                json.dump(told, pipe)
        finally:
            os._exit(code)
    os.close(mouth)
    with os.fdopen(ears) as pipe:
        error, places = json.loads(pipe.read() or '["", []]')
    return Attempt(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), error, places)


def output_digests(out: Path) -> tuple[str, str, str]:
    """SHA-256 of weights, log and outputs."""
    run = Run.open(out / "runs/recipe/base/seed-1")
    outputs = sha256_file(run.output_path("test"))
    return sha256_file(run.path / "model.safetensors"), run.log.digest(), outputs


def try_fault(recipe: Path, out: Path, at: int, kind: str, place: str, wanted: tuple[str, str, str]) -> Outcome:
    """A training with one fault, and the one that goes on afterwards."""
    faults = []
    fault = ERRORS[kind]
    first = train(recipe, out, at, fault)
    allowed = {-signal.SIGKILL} if kind == "SIGKILL" else {0, REFUSED[fault]}
    told = [line for line in first.error.splitlines() if line.startswith("attnkit: error: ")]
    if first.code not in allowed or (first.code > 0 and len(told) != 1):
        faults.append(f"exit {first.code}: {first.error[-300:]}")
    second = train(recipe, out)
    if second.code:
        faults.append(f"the next start: exit {second.code}: {second.error[-300:]}")
    elif output_digests(out) != wanted:
        faults.append("the next start ended otherwise")
    elif "damaged" in second.error:
        faults.append(f"the next start met damage: {second.error[-300:]}")
    if left := sorted(out.rglob(LEFT_OVER)):
        faults.append(f"left behind by the next start: {left}")
    shutil.rmtree(out)
    return Outcome(place, kind, first.code, faults)


def fill_up() -> str:
    """Fill a file system of 16 MB behind a checkpoint, in a namespace where mounting is allowed.

    Returns what happened in words.  Raises AssertionError where anything is lost.
    """
    folder = Path(tempfile.mkdtemp())
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], check=True)
    prepare(folder)
    recipe, filler = folder / "recipe.yaml", folder / "filler"
    assert train(recipe, folder / "whole").code == 0
    wanted = output_digests(folder / "whole")
    shutil.rmtree(folder / "whole")
    small = recipe.read_text(encoding="utf-8")

    recipe.write_text(small.replace("width: 8", "width: 512"), encoding="utf-8")
    refused = train(recipe, folder / "large")
    assert refused.code == 74, refused
    assert "are needed" in refused.error, refused
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
    assert output_digests(out) == wanted
    return (
        f"exit 74 in the save after step {steps[0]}, whose checkpoint stayed whole; with space "
        "again the training ended bit for bit as one without faults; a model that cannot fit: "
        "exit 74 before the first update"
    )
