"""Does anything that can go wrong pass in silence, or leave something behind?

    python benchmarks/attack.py [--part PART ...] [--stops 300] [--flips 20000] [--crafted 1000]
        [--pretrained 500] [--caches 200] [--races 60] [--minutes 60] [--seed 1]

Parts, each drawn from the seed, each with the number of its cases:

- stops: commands get one of six signals at a random moment, alone or with all their children; they
  must end with a code that says so and without a traceback, leave no process; started again they
  must end well, with runs that verify, and leave no temporary name, also in $TMPDIR.
- flips: one bit of one file of a finished or a stopped run; `verify` must find it, unless what is
  read of the file is the same.
- crafted: an entry of another type, or none, in a JSON file of a run or in a row, with all hashes
  made to agree; `verify`, `eval`, `report`, `plot`, `generate`, `runs` must say so in one line, or
  go on.
- pretrained: the same in the settings of a Hugging Face model, or an index of weights that leads to
  a pickle or elsewhere; opening it must be refused in one line, or give a model.
- caches: a bit, an entry or a file of the cache is changed; a training with it must end with the
  weights of one without.
- races: `verify`, `runs pack` and `report` beside `eval --fresh`; each second of it counts.
- lookups: commands that import libraries which can phone home, under a guard of the C library that
  notes and refuses look-ups and connections.

A case that breaks a promise is a fault, and is shown.  Stops after --minutes.  Writes
results/attack.md.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from common import (
    ROOT,
    attnkit,
    command,
    environment,
    load_before,
    publish_part,
    say,
    table,
    versions,
)

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers import attacks  # noqa: E402
from helpers.attacks import Case  # noqa: E402

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL,
           signal.SIGABRT)  # fmt: skip
WAYS = ("alone", "with its children")
TOY = """\
task: translation
data: {corpus: toy-translation, size: 80, max_length: 64}
tokenizer: {size: 120}
model: {width: 16, ff: 16, layers: 1, heads: 2}
train: {steps: 12, batch_tokens: 256, precision: fp32, save_every: 3, valid_every: 6, seeds: [1, 2]}
search: {method: greedy, max_length: 12}
eval: {metrics: [bleu], bootstrap: 10}
variants: {base: {}, dot: {model.attention: dot}}
"""
RUN = "runs/toy/base/seed-1"
COMMANDS = (
    "train toy.yaml --device cpu --out new", "train toy.yaml --device cpu --out new --jobs 2",
    "eval runs/toy --fresh --device cpu", f"generate {RUN} text -o out.txt --device cpu",
    f"export {RUN} out --to huggingface", f"export {RUN} out --to ctranslate2",
    f"export {RUN} out --to onnx",
    "runs pack runs/toy --results -o packed", "report runs/toy -o out.html",
    "plot runs/toy --save out.svg", "verify runs/toy --device cpu --lines 2",
    "recipe copy quickstart out.yaml", "data encode toy.yaml", "slurm toy.yaml --save out.sh",
    f"visualize-attn {RUN} dog --save out.npz --device cpu",
)  # fmt: skip
READERS = ("verify runs/toy --lines 0 --device cpu",
           "report runs/toy -o page.html", "runs pack runs/toy --results -o packed")  # fmt: skip
PHONING = ("train toy.yaml --device cpu --out new", "eval runs/toy --device cpu",
           f"export {RUN} out --to huggingface", f"export {RUN} out2 --to onnx",
           f"export {RUN} out3 --to ctranslate2", f"generate {RUN} text --engine ctranslate2",
           "plot runs/toy --save out.svg", "report runs/toy -o out.html",
           "train toy.yaml --device cpu --out log train.log_to=[tensorboard]",
           "nbce model --context text --prompt two --device cpu search.max_length=3")  # fmt: skip


def made(folder: Path) -> None:
    """The runs of a toy, a text, and a cache."""
    folder.mkdir(parents=True)
    (folder / "toy.yaml").write_text(TOY)
    (folder / "text").write_text("one red dog\ntwo cats\n")
    words = ("train", "toy.yaml", "--device", "cpu", "--quiet")
    subprocess.run(attnkit(*words), cwd=folder, env=surroundings(folder), check=True)


def surroundings(folder: Path) -> dict[str, str]:
    """Environment of a command: one thread, a cache and a folder of temporary files of its own."""
    (folder / "tmp").mkdir(exist_ok=True)
    return environment(1, ATTNKIT_CACHE=str(folder / "cache"), TMPDIR=str(folder / "tmp"),
                       MPLCONFIGDIR=str(folder / "cache"), ATTACKED=str(folder),
                       TORCHINDUCTOR_CACHE_DIR=str(folder / "cache"))  # fmt: skip


def processes(folder: Path) -> list[int]:
    """Those that were started for a folder and are still there."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (place / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if f"ATTACKED={folder}".encode() in (place / "environ").read_bytes() and state != "Z":
                found.append(int(place.name))
    return found


def stops(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Signals to commands."""
    durations = dict[str, float]()
    while True:
        words = draw.choice(COMMANDS)
        number, way = draw.choice(SIGNALS), draw.choice(WAYS)
        kind = f"{' '.join(words.split()[: 2 if words[:4] in ('runs', 'data') else 1])}"
        at = folder / "case"
        shutil.rmtree(at, ignore_errors=True)
        shutil.copytree(folder / "whole", at)
        faults = list[str]()
        begun = time.monotonic()
        process = started(words, at)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(draw.uniform(0.1, durations.get(words, 12.0)))
        if process.poll() is None:
            target = process.pid if way == "alone" else -process.pid
            (os.kill if target > 0 else lambda p, n: os.killpg(-p, n))(target, number)
        else:
            durations[words] = time.monotonic() - begun
        err = process.communicate(timeout=60)[1]
        allowed = {0, 75, 128 + number, -number, 71}
        if process.returncode not in allowed or "Traceback" in err and number != signal.SIGABRT:
            faults.append(f"code {process.returncode}: {err[-200:]}")
        deadline = time.monotonic() + 10
        while (left := processes(at)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            faults.append(f"processes live on: {left}")
            for one in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
        if process.returncode == 0:
            for name in ("out", "out.yaml"):
                with contextlib.suppress(OSError):
                    shutil.rmtree(at / name) if (at / name).is_dir() else (at / name).unlink()
        again = started(words, at)
        err = again.communicate(timeout=120)[1]
        if again.returncode:
            faults.append(f"started again: {again.returncode}: {err[-200:]}")
        checked = started("verify runs/toy --lines 0", at)
        err = checked.communicate(timeout=120)[1]
        if checked.returncode:
            faults.append(f"verify: {checked.returncode}: {err[-200:]}")
        names = [path for path in at.rglob("*.tmp-*") if "cache" not in path.parts]
        if names or (names := [*(at / "tmp").iterdir()]):
            faults.append(f"left: {', '.join(str(path.relative_to(at)) for path in names[:3])}")
        text = f"{words}, {signal.Signals(number).name} {way}: {'; '.join(faults)}"
        yield Case(kind, "FAULT" if faults else "fine", text)


def started(words: str, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        attnkit(*words.split()), cwd=folder, env=surroundings(folder), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def races(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Readers beside a writer."""
    at = folder / "whole"
    again = "eval runs/toy --fresh --device cpu --metrics"
    writers = [f"{again} bleu", f"{again} chrf"]
    writer = started(draw.choice(writers), at)
    try:
        while True:
            words = draw.choice(READERS)
            reader = started(words, at)
            while reader.poll() is None:
                if writer.poll() is not None:
                    writer = started(draw.choice(writers), at)
                time.sleep(0.02)
            code, err = reader.returncode, reader.communicate()[1]
            if code == 0 and words.endswith("packed.tar.gz"):
                shutil.rmtree(at / "opened", ignore_errors=True)
                shutil.unpack_archive(at / "packed.tar.gz", at / "opened", filter="data")
                checked = started("verify opened --lines 0", at)
                code, err = checked.wait(), checked.communicate()[1]
            verdict = "fine" if code == 0 else "FAULT"
            yield Case(" ".join(words.split()[:2]), verdict, f"{code}: {err[-300:]}")
    finally:
        writer.kill()
        writer.communicate()


def lookups(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Commands under the guard."""
    from helpers.network import guarded, seen
    from helpers.pretrained import saved

    at = folder / "whole"
    saved(at / "model", "llama")
    guard = {**surroundings(at), **guarded(folder / "guard"), "TMPDIR": str(at / "tmp")}
    for words in PHONING:
        done = subprocess.run(attnkit(*words.split()), cwd=at, env=guard, capture_output=True)
        found = seen(folder / "guard")
        fault = f"{done.returncode}: {done.stderr[-200:]!r} {found}"
        fine = not found and done.returncode == 0
        yield Case(" ".join(words.split()[:1]), "none" if fine else "FAULT", fault)


PARTS: dict[str, tuple[Callable[[Path, random.Random], Iterator[Case]], int]] = {
    "stops": (stops, 300), "flips": (attacks.flips, 20_000), "crafted": (attacks.crafted, 1000),
    "pretrained": (attacks.pretrained, 500), "caches": (attacks.caches, 200), "races": (races, 60),
    "lookups": (lookups, len(PHONING)),
}  # fmt: skip


def attempts(part: str, count: int, minutes: float, seed: int, folder: Path) -> list[Case]:
    """The cases of a part, until all are there or the time is over."""
    found, until = list[Case](), time.monotonic() + 60 * minutes
    if part in ("stops", "caches", "races", "lookups"):
        made(folder / part / "whole")
    cases = PARTS[part][0](folder / part, random.Random(f"{part} {seed}"))
    for case in cases:
        found.append(case)
        if case.verdict == "FAULT":
            say(f"{part}: {case.kind}: {case.detail}")
        if len(found) >= count or time.monotonic() > until:
            break
    cases.close()  # type: ignore[attr-defined]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    for part, (_, count) in PARTS.items():
        parser.add_argument(f"--{part}", type=int, default=count)
    parser.add_argument("--minutes", type=float, default=60, help="of a part, at most")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    faults, order = 0, [f"Attack on {part}" for part in PARTS]
    for part in options.part or PARTS:
        before, begun = load_before(), time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            count, minutes = getattr(options, part), options.minutes
            cases = attempts(part, count, minutes, options.seed, Path(folder))
        found: dict[str, Counter[str]] = {}
        for case in cases:
            found.setdefault(case.kind, Counter())[case.verdict] += 1
        bad = [case for case in cases if case.verdict == "FAULT"]
        faults += len(bad)
        verdicts = sorted({case.verdict for case in cases} | {"FAULT"})
        rows = [(kind, *(found[kind][one] for one in verdicts)) for kind in sorted(found)]
        facts = {
            "command": command(options),
            "versions": versions("attnkit", "torch"),
            "load": before,
            "result": f"**{len(cases):,} cases, {len(bad):,} faults**, in "
            f"{(time.monotonic() - begun) / 60:.0f} min",
        }
        body = table(["kind", *verdicts], rows)
        body += [f"- {case.kind}: {case.detail}".replace(folder, "FOLDER") for case in bad]
        publish_part("attack", "Attacks", f"Attack on {part}", order, facts, body)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
