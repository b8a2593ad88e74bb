"""How long one waits: for `attnkit --help`, one line of a run, and a first training step.

    python benchmarks/start.py RUN --data-dir DIR [--repeats 10] [--trainings 5]

RUN is a trained translation/multi30k or translation/tailr, which translates a line.

Times are of whole processes, from their start: to their end for --help and a line, to the report
of the first update for a training, whose data was prepared, and whose precision was chosen, once
before (a warm cache).  Writes results/start.md.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import (
    attnkit,
    command,
    cores,
    environment,
    load_before,
    publish,
    say,
    spread,
    table,
    versions,
)

RECIPE = "translation/multi30k"


LINE = "A man in an orange hat starring at something.\n"


def seconds(words: Sequence[str], line: str = "") -> float:
    """Seconds that a command takes, given a line to read."""
    began = time.perf_counter()
    subprocess.run(
        words, check=True, input=line, text=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip
    return time.perf_counter() - began


def first_step(options: argparse.Namespace, work: Path, number: int) -> dict[str, float]:
    """Seconds until each kind of event came first, up to the first update of a new training."""
    words = attnkit(
        "train", RECIPE, "train.log_every=1", "--json", "--out", work / f"runs-{number}",
        *(["--data-dir", options.data_dir] if options.data_dir else []),
    )  # fmt: skip
    moments: dict[str, float] = {}
    began = time.perf_counter()
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(options.threads, ATTNKIT_CACHE=str(work / "cache")),
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        moments.setdefault(json.loads(line)["event"], time.perf_counter() - began)
        if "progress" in moments:
            break
    process.kill()
    _, errors = process.communicate()
    if "progress" not in moments:
        raise SystemExit(f"the training did not begin:\n{errors[-2000:]}")
    return moments


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path, help="folder of corpora; default $ATTNKIT_DATA")
    parser.add_argument("--repeats", type=int, default=10, help="of attnkit --help and of a line")
    parser.add_argument("--trainings", type=int, default=5, help="of the first training step")
    parser.add_argument("--threads", type=int, default=cores())
    options = parser.parse_args()
    load = load_before()
    say("attnkit --help and generate")
    help_, generate = attnkit("--help"), attnkit("generate", options.run)
    # the first one reads the disk
    helped = [seconds(help_) for _ in range(options.repeats + 1)][1:]
    generated = [seconds(generate, LINE) for _ in range(options.repeats + 1)][1:]
    with tempfile.TemporaryDirectory() as temporary:
        say(f"{RECIPE}: the first training fills the cache")
        cold = first_step(options, Path(temporary), 0)
        warm = [
            first_step(options, Path(temporary), number)
            for number in range(1, options.trainings + 1)
        ]
    rows = [
        ("`attnkit --help`", *spread(helped, 3), "0.3"),
        ("`attnkit generate RUN` of one line, beam 5", *spread(generated, 2), "1.5"),
        ("... data ready (warm cache)", *spread([one["prepared"] for one in warm], 2), ""),
        ("... precision chosen, model built", *spread([one["started"] for one in warm], 2), ""),
        ("first training step", *spread([one["progress"] for one in warm], 2), "10"),
        ("first training step, cold cache (once)", f"{cold['progress']:.2f}", "", ""),
    ]
    facts = {
        "command": f"`{command(options, run='RUN', data_dir='DATA')}`",
        "versions": versions("attnkit", "torch"),
        "started as": f"`{'attnkit' if len(attnkit()) == 1 else 'python -m attnkit'}`, "
        f"{options.threads} threads",
        "load of the machine": load,
        "repeats": f"{options.repeats} each of --help and of translating one line, "
        f"{options.trainings} of training {RECIPE}",
    }
    publish(
        "start", "Waiting times", facts,
        table(["from the start of the process to", "median s", "range", "at most"], rows),
    )  # fmt: skip


if __name__ == "__main__":
    main()
