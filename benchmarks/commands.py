"""Are commands slower than those of another version, and how long does `verify` take for many runs?

    python benchmarks/commands.py --base COMMIT [--repeats 12] [--verified 500]

Each version trains the same toy and runs each command on its own runs, by turns with the other:
this one first, then the other first, and so on.  What counts is processor time, user and system,
of a command and its children, with one thread: the least of all turns over the other version's
least, since whatever else the machine does only adds to it.  Such times still vary by more than
2 %; the number of functions that a command calls hardly does, so it is compared, too.  A command
that the other version refuses is not compared.  Writes results/commands.md.
"""

import argparse
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
from common import ROOT, command, environment, load_before, publish, table, versions

SHORT = "train quickstart --variant scaled-dot train.steps=40 model.width=128 --device cpu"
KEPT = "train quickstart --variant scaled-dot train.steps=40 --device cpu"
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
COUNTED = """
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
"""A command that writes how many functions it called; the command line ends by `os._exit`."""
NOTE = """\
Calls: of functions, counted by cProfile in the command's own process.  Spread: how far the median
of all times lies above the least, that is, what other work on the machine added.  `report` draws
two pictures more than versions before the overview of systems by tasks, and `runs pack` names
missing seeds."""


class Version:
    """One version of attnkit with a folder of runs that it trained."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        self.env = environment(1, ATTNKIT_CACHE=str(folder / "cache"), PYTHONPATH=str(tree))
        write_toy(folder)
        assert self.seconds("train toy.yaml --device cpu") is not None

    def seconds(self, words: str, *, program: Sequence[str] = ("-m", "attnkit")) -> float | None:
        """Processor time of a command; None where it failed."""
        for name in OUTPUTS:
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, *program, *words.split()],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(process.pid, 0)
        return used.ru_utime + used.ru_stime if status == 0 else None

    def calls(self, words: str) -> int:
        """How many functions a command calls that succeeds."""
        counted = self.folder / "calls"
        self.env["CALLS"] = str(counted)
        assert self.seconds(words, program=("-c", COUNTED)) is not None
        return int(counted.read_text("utf-8"))


def times(ours: Version, theirs: Version, words: str, repeats: int) -> tuple[list[float], list[float]] | None:
    """Our times and theirs; None where a version refuses the command."""
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats + 1):
        pair = [theirs, ours] if turn % 2 else [ours, theirs]
        taken = {version: version.seconds(words) for version in pair}
        if (mine := taken[ours]) is None or (other := taken[theirs]) is None:
            return None
        if turn:  # the first fills caches
            found[0].append(mine)
            found[1].append(other)
    return found


def row(ours: Version, theirs: Version, words: str, repeats: int) -> list[str]:
    """Calls of a command and its least time over the other version's, and how times spread."""
    if (taken := times(ours, theirs, words, repeats)) is None:
        return [f"`{words}`", "not comparable", "-", "-"]
    mine, others = taken
    calls = ours.calls(words) / theirs.calls(words)
    spread = median([*mine, *others]) / min(*mine, *others) - 1
    return [f"`{words}`", f"{calls:.3f}", f"{min(mine) / min(others):.3f}", f"{100 * spread:.0f} %"]


def verified(version: Version, runs: int) -> str:
    """How long `verify` takes for so many copies of a run."""
    assert version.seconds(f"{KEPT} --out kept") is not None
    many = version.folder / "many"
    for number in range(runs):
        shutil.copytree(version.folder / "kept/quickstart/scaled-dot", many / str(number))
    begun = time.monotonic()
    used = version.seconds("verify many")
    assert used is not None
    return f"{time.monotonic() - begun:.1f} s, {used:.1f} s of processor time"


def main() -> None:
    """Compare two versions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True, help="a commit of this repository")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--verified", type=int, default=500, help="runs for `verify`")
    options = parser.parse_args()
    before, git = load_before(), ("git", "-C", str(ROOT), "worktree")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        subprocess.run([*git, "add", "-q", "--detach", str(tree), options.base], check=True)
        try:
            ours, theirs = Version(ROOT, Path(folder) / "a"), Version(tree, Path(folder) / "b")
            rows = [row(ours, theirs, words, options.repeats) for words in COMMANDS]
            facts = {
                "command": command(options),
                "versions": versions("attnkit", "torch"),
                "load": before,
                "pairs": f"{options.repeats} a command",
                f"verify of {options.verified} runs of 600 test sentences": verified(ours, options.verified),
            }
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    heads = ["command", "calls over the other version's", "least time over the other's", "spread"]
    body = [*table(heads, rows), "", NOTE]
    publish("commands", "Commands beside those of another version", facts, body)


if __name__ == "__main__":
    main()
