"""Training in two processes of one thread, beside one process of two; and a process that is killed.

    python benchmarks/ranks.py --data-dir DIR [--rounds 3] [--seconds 15]

All make the same updates: two micro-batches of translation/multi30k, accumulated by one process or
dealt to two (train.parallel).  A round asks every setting in turn; a ratio is the median of the
ratios within each round.  Then one of two processes of a small training is killed with SIGKILL, and
the training is resumed and compared with one that was left alone.  Writes results/ranks.md.
"""

import argparse
import hashlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from common import (
    UPDATES_ALONE,
    attnkit,
    command,
    environment,
    load_before,
    publish,
    say,
    spread,
    steady_speed,
    table,
    versions,
)

ALONE = "one process of two threads"
SETTINGS = {
    ALONE: ["train.accumulate=2"],
    "two of one thread, ddp": ["--nproc", "2", "train.parallel=ddp"],
    "two of one thread, fsdp": ["--nproc", "2", "train.parallel=fsdp"],
}
SMALL = [
    "train",
    "quickstart",
    "--variant",
    "scaled-dot",
    "train.steps=120",
    "train.precision=fp32",
    "train.batch_tokens=1000",
    "train.valid_every=20",
]


def speed(name: str, options: argparse.Namespace, work: Path) -> float:
    """Target tokens a second once the training is under way."""
    process = subprocess.Popen(
        attnkit(
            *UPDATES_ALONE,
            f"train.precision={options.precision}",
            *SETTINGS[name],
            *(["--data-dir", options.data_dir] if options.data_dir else []),
            "--out",
            str(work / "runs"),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=environment(ATTNKIT_CACHE=str(work / "cache"), OMP_NUM_THREADS="2"),
    )
    found = steady_speed(process, options.seconds)
    process.terminate()
    process.wait()
    return found


def ranks_of(launcher: int) -> list[int]:
    """The processes that a launcher has started, in order."""
    found = Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="utf-8")
    return sorted(map(int, found.split()))


def weights(out: Path) -> str:
    path = out / "quickstart" / "scaled-dot" / "seed-1" / "model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def kill(parallel: str, rank: int, work: Path) -> list[str]:
    """Kill one rank, resume, compare; a row of the report."""
    env = environment(ATTNKIT_CACHE=str(work / "cache"), OMP_NUM_THREADS="1")
    words = attnkit(*SMALL, f"train.parallel={parallel}", "--nproc", "2")
    whole, parts = work / f"whole-{parallel}", work / f"{parallel}-{rank}"
    if not whole.exists():
        done = subprocess.run([*words, "--out", str(whole)], capture_output=True, env=env)
        assert done.returncode == 0, done.stderr
    process = subprocess.Popen(
        [*words, "--json", "train.log_every=50", "--out", str(parts)],
        text=True,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "validated":
            break
    os.kill(ranks_of(process.pid)[rank], signal.SIGKILL)
    start = time.monotonic()
    _, said = process.communicate()
    seconds = time.monotonic() - start
    resumed = subprocess.run([*words, "train.log_every=50", "--out", str(parts)], capture_output=True, env=env)
    assert resumed.returncode == 0, resumed.stderr
    same = "identical" if weights(whole) == weights(parts) else "DIFFERENT"
    last = said.strip().splitlines()[-1].removeprefix("attnkit: error: ").partition(";")[0]
    return [parallel, str(rank), f"{seconds:.1f}", str(process.returncode), last, same]


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder of corpora; default $ATTNKIT_DATA")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15, help="of each training")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    load, found = load_before(), {name: list[float]() for name in SETTINGS}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for number in range(options.rounds):
            for name, speeds in found.items():
                speeds.append(speed(name, options, work))
                say(f"round {number + 1}: {name}: {speeds[-1]:,.0f} tokens/s")
        killed = [kill(how, rank, work) for how in ("ddp", "fsdp") for rank in (0, 1)]
    rows = []
    for name, speeds in found.items():
        ratios = [one / base for one, base in zip(speeds, found[ALONE], strict=True)]
        rows.append([name, *spread(speeds), f"{statistics.median(ratios):.2f}"])
    facts = {"command": command(options, data_dir="DIR"), "versions": versions("attnkit", "torch"), "load": load}
    speeds_table = table(["processes", "tokens/s", "range", "ratio"], rows)
    kills = table(
        [
            "train.parallel",
            "rank killed",
            "seconds until the command ended",
            "exit code",
            "last line",
            "weights after resuming",
        ],
        killed,
    )
    publish("ranks", "Training in two processes", facts, [*speeds_table, "", *kills])


if __name__ == "__main__":
    main()
