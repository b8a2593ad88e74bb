"""Whether commands are slower than those of another version, and how long `verify` takes for many runs.

    python benchmarks/commands.py --base COMMIT [--repeats 12]

Each version trains the same toy and runs each command on its own runs, in turn with the other: this one first, then
the other first, and so on. The ratio is that of the minima of processor time, user and system, of a command and its
children, with one thread, since other work on the machine only adds to it. Such times still vary by more than 2 %; the
number of functions that a command calls hardly varies, so it is compared too. A command that the other version refuses
is not compared. Writes results/commands.md.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from attack import RUN, write_toy
from common import ROOT, arguments, environment, facts, publish, table

SHORT = "train quickstart --variant scaled-dot train.steps=40 model.width=128 --device cpu"
AS_SHIPPED = "train quickstart --variant scaled-dot train.steps=40 --device cpu"
"""Both versions train the first, whose shape they share; the second is the recipe as it ships."""
COMMANDS = (
    "--help",
    "mechanisms",
    "recipe show quickstart",
    "train toy.yaml --device cpu --out new",
    f"{SHORT} --out new",
    f"generate {RUN} text --device cpu",
    "eval runs/toy --fresh --device cpu",
    "runs runs/toy",
    "verify runs/toy",
    "compare runs/toy/base runs/toy/dot",
    "plot runs/toy --save out.svg",
    "report runs/toy -o out.html",
    f"visualize-attn {RUN} dog --save out.npz --device cpu",
    f"align {RUN} text text -o out.txt",
    f"nbce {RUN} --context text --prompt two --max-length 3 --device cpu",
    f"export {RUN} out --to huggingface",
    "runs pack runs/toy --results -o out",
)
OUTPUTS = ("new", "out", "out.svg", "out.html", "out.npz", "out.txt")
VERIFIED = 500
COUNT_CALLS = """
import cProfile, os, pstats, sys

profile, leave = cProfile.Profile(), os._exit

def end(code):
    profile.disable()
    print(pstats.Stats(profile).total_calls, file=open(os.environ["CALLS"], "w"), flush=True)
    leave(code)

os._exit = end
sys.argv = ["attnkit", *sys.argv[1:]]
profile.enable()
from attnkit.cli import script
script()
"""
"""A program that runs a command and writes how many functions it called; the command line ends by `os._exit`."""
NOTE = """\
Calls: of functions, counted by cProfile in the command's own process. Spread: by how much the median of all times is
above the minimum, which is what other work on the machine added. `report` draws two pictures more than versions before
the overview of systems by tasks, and `runs pack` names missing seeds."""


class Version:
    """A version of attnkit with a folder of runs that it trained."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        self.env = environment(1, ATTNKIT_CACHE=str(folder / "cache"), PYTHONPATH=str(tree))
        write_toy(folder)
        assert self.seconds("train toy.yaml --device cpu") is not None

    def seconds(self, words: str, program: Sequence[str] = ("-m", "attnkit")) -> float | None:
        """Return the processor time of a command, or None if it failed."""
        for name in OUTPUTS:
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        command, quiet = [sys.executable, *program, *words.split()], subprocess.DEVNULL
        process = subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=quiet, stderr=quiet)
        _, status, used = os.wait4(process.pid, 0)
        return used.ru_utime + used.ru_stime if status == 0 else None

    def calls(self, words: str) -> int:
        """Return the number of functions that a command calls."""
        counted = self.folder / "calls"
        self.env["CALLS"] = str(counted)
        assert self.seconds(words, program=("-c", COUNT_CALLS)) is not None
        return int(counted.read_text("utf-8"))


def compare(ours: Version, theirs: Version, words: str, repeats: int) -> list[str]:
    """Return the ratios of calls and of minimum times of a command, and the spread of times."""
    times: dict[Version, list[float]] = {ours: [], theirs: []}
    for turn in range(repeats + 1):
        for version in [theirs, ours] if turn % 2 else [ours, theirs]:
            if (seconds := version.seconds(words)) is None:
                return [f"`{words}`", "not comparable", "-", "-"]
            times[version] += [seconds] if turn else []  # the first fills caches
    low, lowest = min(times[ours]) / min(times[theirs]), min(*times[ours], *times[theirs])
    spread = median(times[ours] + times[theirs]) / lowest - 1
    return [f"`{words}`", f"{ours.calls(words) / theirs.calls(words):.3f}", f"{low:.3f}", f"{100 * spread:.0f} %"]


def verify_many(version: Version) -> str:
    """Return how long `verify` takes for copies of a run."""
    assert version.seconds(f"{AS_SHIPPED} --out kept") is not None
    for number in range(VERIFIED):
        shutil.copytree(version.folder / "kept/quickstart/scaled-dot", version.folder / "many" / str(number))
    began = time.monotonic()
    used = version.seconds("verify many")
    return f"{time.monotonic() - began:.1f} s, {used:.1f} s of processor time"


def main() -> None:
    options = arguments(__doc__, base=str, repeats=12)
    about, worktree = facts(options), ("git", "-C", str(ROOT), "worktree")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        subprocess.run([*worktree, "add", "-q", "--detach", str(tree), options.base], check=True)
        try:
            ours, theirs = Version(ROOT, Path(folder) / "a"), Version(tree, Path(folder) / "b")
            rows = [compare(ours, theirs, words, options.repeats) for words in COMMANDS]
            about["pairs"] = f"{options.repeats} a command"
            about[f"verify of {VERIFIED} runs of 600 test sentences"] = verify_many(ours)
        finally:
            subprocess.run([*worktree, "remove", "--force", str(tree)], check=True)
    header = "command | calls over the other version's | least time over the other's | spread"
    publish("commands", "Commands beside those of another version", about, [table(header, rows), NOTE])


if __name__ == "__main__":
    main()
