"""Training in two processes of one thread, compared with one process of two; and a process that is killed.

    python benchmarks/ranks.py [--data-dir DIR] [--rounds 3] [--seconds 15]

All make the same updates: two micro-batches of translation/multi30k, accumulated by one process or distributed to two
(train.parallel). In each round every setting takes a turn; a ratio is the median of the ratios within each round. Then
one of two processes of a small training is killed with SIGKILL, and the training is resumed and compared with an
uninterrupted one. Writes results/ranks.md.
"""

import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from common import arguments, attnkit, environment, facts, publish, say, spread, start_updates, steady_speed, table

from attnkit.storage.files import sha256_file

BASE = "one process of two threads"
SETTINGS = {
    BASE: ["train.accumulate=2"],
    "two of one thread, ddp": ["--nproc", "2", "train.parallel=ddp"],
    "two of one thread, fsdp": ["--nproc", "2", "train.parallel=fsdp"],
}
SMALL = (
    *("train", "quickstart", "--variant", "scaled-dot", "--nproc", "2", "train.steps=120", "train.precision=fp32"),
    *("train.batch_tokens=1000", "train.valid_every=20", "train.log_every=50"),
)


def weights(out: Path) -> str:
    return sha256_file(out / "quickstart/scaled-dot/seed-1/model.safetensors")


def kill(parallel: str, rank: int, work: Path) -> list[str]:
    """Kill one rank, resume and compare; return a row of the page."""
    env = environment(1, ATTNKIT_CACHE=str(work / "cache"))
    words = attnkit(*SMALL, f"train.parallel={parallel}")
    whole, resumed = work / f"whole-{parallel}", work / f"{parallel}-{rank}"
    if not whole.exists():
        subprocess.run([*words, "--out", str(whole), "--quiet"], check=True, env=env)
    pipe = subprocess.PIPE
    process = subprocess.Popen([*words, "--json", "--out", str(resumed)], text=True, env=env, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "validated":
            break
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8")
    os.kill(sorted(map(int, children.split()))[rank], signal.SIGKILL)
    start = time.monotonic()
    errors = process.communicate()[1]
    seconds = time.monotonic() - start
    subprocess.run([*words, "--out", str(resumed), "--quiet"], check=True, env=env)
    same = "identical" if weights(whole) == weights(resumed) else "DIFFERENT"
    last = errors.strip().splitlines()[-1].removeprefix("attnkit: error: ").partition(";")[0]
    return [parallel, str(rank), f"{seconds:.1f}", str(process.returncode), last, same]


def main() -> None:
    options = arguments(__doc__, rounds=3, seconds=15.0)
    about, speeds = facts(options), {name: list[float]() for name in SETTINGS}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for number in range(options.rounds):
            for name, words in SETTINGS.items():
                process = start_updates(work / "runs", "train.precision=fp32", *words, OMP_NUM_THREADS="2")
                speeds[name].append(steady_speed(process, options.seconds))
                process.terminate()
                process.wait()
                say(f"round {number + 1}: {name}: {speeds[name][-1]:,.0f} tokens/s")
        killed = [kill(parallel, rank, work) for parallel in ("ddp", "fsdp") for rank in (0, 1)]
    rows = []
    for name, values in speeds.items():
        ratios = [value / base for value, base in zip(values, speeds[BASE], strict=True)]
        rows.append([name, *spread(values), f"{statistics.median(ratios):.2f}"])
    speed_table = table("processes | tokens/s | range | ratio", rows)
    header = "train.parallel | rank killed | seconds until the command ended | exit code | last line"
    body = [speed_table, table(f"{header} | weights after resuming", killed)]
    publish("ranks", "Training in two processes", about, body)


if __name__ == "__main__":
    main()
