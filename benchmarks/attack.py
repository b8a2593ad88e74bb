"""Does anything that can go wrong pass in silence, or leave something behind?

    python benchmarks/attack.py [--part PART ...] [--stops 300] [--flips 20000] [--crafted 1000]
        [--pretrained 500] [--caches 200] [--races 60] [--minutes 60] [--seed 1]

Parts, each drawn from the seed, each with the number of its cases:

- stops: commands get one of six signals at a random moment, alone, with all their children, or one
  of the children does; they must end with a code that says so, no traceback and no process; started
  again they must end well, with runs that verify, and leave no temporary name, also in $TMPDIR.
- flips: one bit of one file of a finished or a stopped run; `verify` must find it, unless what is
  read of the file is the same.
- crafted: an entry of another type, or none, in a JSON file of a run or in a row, with all hashes
  made to agree; `verify`, `eval`, `report`, `plot`, `generate`, `runs` must say so in one line, or
  go on.
- pretrained: the same in the settings of a Hugging Face model, or an index of weights that leads to
  a pickle or elsewhere; opening it must be refused in one line, or give a model.
- caches: a bit, an entry or a file of the cache is changed; a training with it must end with the
  weights of one without.
- races: every reader of runs beside every writer (`eval --fresh`, `train --fresh`, `runs clean`).
- lookups: commands that import libraries which can phone home, under a guard of the C library that
  notes and refuses look-ups and connections.

A case that breaks a promise is a fault, and is shown.  Stops after --minutes.  Most commands of
stops and races are forked from this process, which has imported what they need; every fifth is a
Python of its own.  Writes results/attack.md.
"""

import argparse
import contextlib
import json
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
from importlib import import_module
from pathlib import Path
from typing import Any

from common import ROOT, attnkit, command, environment, load_before, publish_part, say, table, versions

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers import mutations  # noqa: E402
from helpers.attacks import Case, judge, run_attnkit, sign_rows  # noqa: E402
from helpers.small import write_corpus  # noqa: E402

from attnkit.cli import script  # noqa: E402
from attnkit.errors import AttnkitError, OutputPathError  # noqa: E402
from attnkit.experiment.verification import verify  # noqa: E402
from attnkit.storage.files import sha256_json  # noqa: E402

OTHERS: tuple[Any, ...] = (None, True, -1, 1.5, "text", [], {}, [[]], 10**30, 10**400, "\ud800")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL, signal.SIGABRT)
WAYS = ("alone", "with its children", "to a child")
LOST = (1, 69, 71)
"""Codes that a command may end with where one of its children was ended."""
TOY = """\
task: translation
data: {train: [train.source, train.target], valid: [valid.source, valid.target],
       test: [test.source, test.target], max_length: 32}
tokenizer: {size: 40}
model: {width: 16, ff: 16, layers: 1, heads: 2}
train: {steps: 12, batch_tokens: 256, precision: fp32, save_every: 3, valid_every: 6, seeds: [1, 2]}
search: {method: greedy, max_length: 12}
eval: {metrics: [bleu], bootstrap: 10}
variants: {base: {}, dot: {model.attention: dot}}
"""
RUN = "runs/toy/base/seed-1"
COMMANDS = (
    "train toy.yaml --device cpu --out new",
    "train toy.yaml --device cpu --out new --jobs 2",
    "eval runs/toy --fresh --device cpu",
    f"generate {RUN} text -o out.txt --device cpu",
    f"export {RUN} out --to huggingface",
    f"export {RUN} out --to ctranslate2",
    f"export {RUN} out --to onnx",
    "runs pack runs/toy --results -o packed",
    "report runs/toy -o out.html",
    "plot runs/toy --save out.svg",
    "verify runs/toy",
    "recipe copy quickstart out.yaml",
    "data encode toy.yaml",
    "slurm toy.yaml --save out.sh",
    f"visualize-attn {RUN} dog --save out.npz --device cpu",
    "train toy.yaml --device cpu --out new --nproc 2",
    f"convert {RUN} --attention linear --transfer 2 --tune 3 --device cpu --out new",
    f"align {RUN} text text -o out.txt --device cpu",
    f"probe heads {RUN} --rows 4 --device cpu",
    f"nbce {RUN} --context text --prompt two --max-length 3 --trace --device cpu",
    "bench attention linear --lengths 64,128 --repeats 1 --budget 1",
    "bench train toy.yaml --updates 2 --profile out.json --device cpu",
    "compare runs/toy/base runs/toy/dot",
    "runs clean runs/toy --yes",
    "runs runs/toy",
    "demo --out out",
    "check linear",
    "doctor --device cpu",
    "mechanisms linear",
)
READERS = (
    "verify runs/toy",
    "report runs/toy -o page.html",
    "runs pack runs/toy --results -o packed",
    "runs runs/toy",
    "plot runs/toy",
    "eval runs/toy --device cpu",
    f"generate {RUN} text --device cpu",
)
WRITERS = (
    "eval runs/toy --fresh --device cpu --metrics bleu",
    "runs clean runs/toy --yes",
    "eval runs/toy --fresh --device cpu --metrics chrf",
    "train toy.yaml --device cpu --fresh --quiet",
)
IN_TRAINING = ("is being trained", "not scored yet", "is not finished", "unfinished", "was trained meanwhile")
"""What readers may refuse a run for, beside a training."""
FORKED = (
    "transformers",
    "torch.fx.experimental.symbolic_shapes",
    "sacrebleu",
    "numpy",
    "attnkit.experiment.experiment",
    "attnkit.experiment.verification",
)
"""What commands need and is imported before they are forked."""
PHONING = (
    "train toy.yaml --device cpu --out new",
    "eval runs/toy --device cpu",
    f"export {RUN} out --to huggingface",
    f"export {RUN} out2 --to onnx",
    f"export {RUN} out3 --to ctranslate2",
    "plot runs/toy --save out.svg",
    "report runs/toy -o out.html",
    "train toy.yaml --device cpu --out log train.log_to=[tensorboard]",
    "nbce model --context text --prompt two --device cpu --max-length 3",
)


def write_toy(folder: Path) -> None:
    """A recipe with its corpus, and a text."""
    folder.mkdir(parents=True)
    write_corpus(folder)
    (folder / "toy.yaml").write_text(TOY)
    (folder / "text").write_text("one red dog\ntwo cats\n")


def made(folder: Path) -> None:
    """The runs of a toy, a text, and a cache."""
    write_toy(folder)
    words = ("train", "toy.yaml", "--device", "cpu", "--quiet")
    subprocess.run(attnkit(*words), cwd=folder, env=surroundings(folder), check=True)


def surroundings(folder: Path) -> dict[str, str]:
    """Environment of a command: one thread, a cache and a folder of temporary files of its own."""
    (folder / "tmp").mkdir(exist_ok=True)
    return environment(
        1,
        ATTNKIT_CACHE=str(folder / "cache"),
        TMPDIR=str(folder / "tmp"),
        MPLCONFIGDIR=str(folder / "cache"),
        ATTACKED=str(folder),
        TORCHINDUCTOR_CACHE_DIR=str(folder / "cache"),
    )


def processes(folder: Path, session: int) -> list[int]:
    """Those that were started for a folder, or belong to a session, and are still there."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, own = (place / "stat").read_text().rsplit(")", 1)[1].split()[:4]
            ours = f"ATTACKED={folder}".encode() in (place / "environ").read_bytes()
            if (ours or own == str(session)) and state != "Z":
                found.append(int(place.name))
    return found


def stops(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Signals to commands."""
    durations = dict[tuple[str, bool], float]()
    while True:
        words = draw.choice(COMMANDS)
        number, way = draw.choice(SIGNALS), draw.choice(WAYS)
        kind = f"{' '.join(words.split()[: 2 if words[:4] in ('runs', 'data') else 1])}"
        at = folder / "case"
        shutil.rmtree(at, ignore_errors=True)
        shutil.copytree(folder / "whole", at)
        faults = list[str]()
        begun, fresh = time.monotonic(), draw.random() < 0.2
        process = started(words, at, fresh)
        with contextlib.suppress(subprocess.TimeoutExpired):
            longest = durations.get((words, fresh), 12.0 if fresh else 4.0)
            process.wait(draw.uniform(0.1 if fresh else 0.01, longest))
        if process.poll() is None:
            children = [one for one in processes(at, process.pid) if one != process.pid]
            way = way if children else "alone"
            with contextlib.suppress(ProcessLookupError):
                if way == "with its children":
                    os.killpg(process.pid, number)
                else:
                    os.kill(draw.choice(children) if way == "to a child" else process.pid, number)
        else:
            durations[words, fresh] = time.monotonic() - begun
        err = process.communicate(timeout=60)[1]
        allowed = {0, 75, 128 + number, -number, 71, *(LOST if way == "to a child" else ())}
        if process.returncode not in allowed or "Traceback" in err and number != signal.SIGABRT:
            faults.append(f"code {process.returncode}: {err[-200:]}")
        deadline = time.monotonic() + 10
        while (left := processes(at, process.pid)) and time.monotonic() < deadline:
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
        written = any((at / name).exists() for name in ("out", "out.yaml"))  # before the signal
        again = started(words, at)
        err = again.communicate(timeout=120)[1]
        if again.returncode and not (written and again.returncode == OutputPathError.code):
            faults.append(f"started again: {again.returncode}: {err[-200:]}")
        checked = started("verify runs/toy", at)
        err = checked.communicate(timeout=120)[1]
        if checked.returncode:
            faults.append(f"verify: {checked.returncode}: {err[-200:]}")
        names = [path for path in at.rglob("*.tmp-*") if "cache" not in path.parts]
        if names or (names := [*(at / "tmp").iterdir()]):
            faults.append(f"left: {', '.join(str(path.relative_to(at)) for path in names[:3])}")
        text = f"{words}, {signal.Signals(number).name} {way}: {'; '.join(faults)}"
        yield Case(kind, "FAULT" if faults else "fine", text)


def started(words: str, folder: Path, fresh: bool = False) -> "subprocess.Popen[str]":
    """A command, forked from this process or in a fresh Python."""

    def forked() -> None:  # never returns; closes the pipe that would tell of a failed start
        os.closerange(3, 1024)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as a Python of its own does at its start
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "rww"[n]) for n in range(3))
        os.environ.update(own)
        tempfile.tempdir, sys.argv = None, ["attnkit", *words.split()]
        script()

    own = surroundings(folder)
    if not fresh:
        for name in FORKED:
            import_module(name)
    return subprocess.Popen(
        attnkit(*words.split()),
        cwd=folder,
        env=own,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=None if fresh else forked,
    )


def subjects(folder: Path) -> list[Path]:
    """A finished and a stopped run, by the helper of the tests."""
    made = [mutations.make_subject(folder / name, finished=name == "finished") for name in ("finished", "stopped")]
    return [mutations.run_in(one.folder / "runs") for one in made]


def flips(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Bits of files, and `verify`."""
    runs = subjects(folder)
    outputs = ("hyp.txt", "stats.npz")
    while True:
        run = draw.choice(runs)
        files = [path for path in run.rglob("*") if path.is_file() and path.name != ".lock"]
        path = draw.choice([path for path in files if path.stat().st_size])
        whole = path.read_bytes()
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        kind = "outputs" if path.name.endswith(outputs) else path.name
        try:
            found = any(check.state == "different" for check in verify(run))
            same = not found and path.suffix == ".json" and equal(whole, data)
            verdict = "found" if found else "reads the same" if same else "FAULT"
            yield Case(kind, verdict, str(path))
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            yield Case(kind, "FAULT", f"{path}: {error!r}")
        finally:
            path.write_bytes(whole)


def equal(one: bytes, other: bytearray) -> bool:
    with contextlib.suppress(ValueError):
        return bool(json.loads(one) == json.loads(other))
    return False


def changed(value: Any, draw: random.Random) -> Any:
    """The same JSON value with one entry of another type, or without it."""
    value = json.loads(json.dumps(value))
    places = list(mutations._leaves(value))
    if not places:
        return draw.choice(OTHERS)
    *above, last = draw.choice(places)
    place = value
    for key in above:
        place = place[key]
    if draw.random() < 0.2 and isinstance(place, dict):
        del place[last]
    else:
        place[last] = draw.choice(OTHERS)
    return value


def crafted(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Well-formed JSON with wrong content, signed."""
    run = subjects(folder)[0]
    page, packed = str(folder / "page.html"), str(folder / "packed")
    while True:
        copy = folder / "copy/recipe/base/seed-1"
        shutil.rmtree(folder / "copy", ignore_errors=True)
        shutil.copytree(run, copy)
        paths = [*copy.glob("*.json*"), *(copy / "data").iterdir()]
        path = draw.choice(paths)
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        at = draw.randrange(len(lines))
        lines[at] = json.dumps(changed(json.loads(lines[at]), draw))
        path.write_text("\n".join(lines) + "\n")
        if path.parent.name == "data" and path.suffix == ".jsonl":
            sign_rows(path)
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            mutations.sign(path)  # what cannot be signed is refused by its hash
        words = draw.choice(
            (
                ("verify", str(copy)),
                ("eval", str(copy)),
                ("report", str(copy), "-o", page),
                ("plot", str(copy)),
                ("runs", str(copy)),
                ("generate", str(copy), str(folder / "finished/input.txt"), "--device", "cpu"),
                ("runs", "pack", str(copy), "--results", "-o", packed),
            )
        )
        case = judge(f"{path.name}, {words[0]}", *run_attnkit(*words))
        yield case._replace(detail=f"{case.detail} {lines[at][:300]}" if case.detail else "")


def pretrained(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Settings of Hugging Face models."""
    from helpers.pretrained import save_pretrained

    from attnkit.huggingface import open_model

    original = save_pretrained(folder / "gpt2", "gpt2")
    while True:
        copy = Path(shutil.copytree(original, folder / "copy", dirs_exist_ok=True))
        kind = draw.choice(["index", *(path.name for path in original.glob("*.json"))])
        path = copy / (kind if kind != "index" else "model.safetensors.index.json")
        value: Any = {"metadata": {}, "weight_map": {"wte": "model.safetensors"}}
        if kind != "index":
            value = changed(json.loads(path.read_bytes()), draw)
        elif draw.random() < 0.5:
            names = ("pytorch_model.bin", "../x.safetensors", "/x.safetensors", "x/y.safetensors")
            value["weight_map"]["wte"] = draw.choice(names)
        else:
            value = changed(value, draw)
        deep = draw.random() < 0.05
        path.write_text("[" * 100_000 + "]" * 100_000 if deep else json.dumps(value))
        try:
            open_model(copy, device="cpu")
            yield Case(kind, "went on")
        except AttnkitError as error:
            yield Case(kind, "refused" if "\n" not in str(error) else "FAULT", str(error))
        except Exception as error:
            yield Case(kind, "FAULT", f"{error!r} {json.dumps(value)[:200]}")
        finally:
            shutil.rmtree(copy)


def caches(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Files of the cache; `folder` has toy.yaml and its runs in whole/."""
    weights = (folder / "whole/runs/toy/base/seed-1/model.safetensors").read_bytes()
    while True:
        cache, out = folder / "cache", folder / "out"
        for path in (cache, out):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(folder / "whole/cache", cache)
        files = [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size]
        path = draw.choice(files)
        if path.suffix == ".json" and draw.random() < 0.6:
            value = changed(json.loads(path.read_bytes()), draw)
            if isinstance(value, dict) and draw.random() < 0.6:
                inside = "content" if "content" in value else "value"
                with contextlib.suppress(ValueError):
                    value["sha256"] = sha256_json(value.get(inside))
            path.write_text(json.dumps(value))
        else:
            data = bytearray(path.read_bytes())
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(data)
        os.environ["ATTNKIT_CACHE"] = str(cache)
        words = ("--device", "cpu", "--quiet", "--variant", "base", "--seed", "1", "--out")
        code, err = run_attnkit("train", str(folder / "whole/toy.yaml"), *words, str(out))
        kind = path.relative_to(cache).parts[0]
        same = code == 0 and (out / "toy/base/seed-1/model.safetensors").read_bytes() == weights
        yield Case(kind, "same weights" if same else "FAULT", f"{path}: {code}: {err[-300:]}")


def races(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Readers beside writers."""
    at = folder / "whole"
    pairs = [(reader, writer) for writer in WRITERS for reader in READERS]
    while True:
        for words, writing in draw.sample(pairs, len(pairs)):
            writer = started(writing, at)
            time.sleep(draw.uniform(0, 1))
            reader = started(words, at)
            while reader.poll() is None:
                if writer.poll() is not None:
                    writer = started(writing, at)
                time.sleep(0.02)
            code, err = reader.returncode, reader.communicate()[1]
            trained = writing.startswith("train") and any(text in err for text in IN_TRAINING)
            fine = (code == 0 or code in (66, 69) and trained) and "not a run" not in err
            told = f"{words} beside {writing}: {code}: {err[-300:]}"
            err = writer.communicate()[1]
            if writer.returncode:
                fine, told = False, f"{told} {writer.returncode}: {err[-300:]}"
            kind = " ".join(words.split()[: 1 + words.startswith("runs p")])
            yield Case(f"{kind} beside {writing.split()[0]}", "fine" if fine else "FAULT", told)


def lookups(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Commands under the guard."""
    from helpers.network import guarded_environment, network_calls
    from helpers.pretrained import save_pretrained

    at = folder / "whole"
    save_pretrained(at / "model", "llama")
    guard = {**surroundings(at), **guarded_environment(folder / "guard"), "TMPDIR": str(at / "tmp")}
    for words in PHONING:
        done = subprocess.run(attnkit(*words.split()), cwd=at, env=guard, capture_output=True)
        found = network_calls(folder / "guard")
        fault = f"{done.returncode}: {done.stderr[-200:]!r} {found}"
        verdict = {0: "none", 69: "not installed"}.get(done.returncode, "FAULT")
        yield Case(words.split()[0], "FAULT" if found else verdict, fault)


PARTS: dict[str, tuple[Callable[[Path, random.Random], Iterator[Case]], int]] = {
    "stops": (stops, 300),
    "flips": (flips, 20_000),
    "crafted": (crafted, 1000),
    "pretrained": (pretrained, 500),
    "caches": (caches, 200),
    "races": (races, 60),
    "lookups": (lookups, len(PHONING)),
}


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
            "result": f"**{len(cases):,} cases, {len(bad):,} faults**, in {(time.monotonic() - begun) / 60:.0f} min",
        }
        body = table(["kind", *verdicts], rows)
        body += [f"- {case.kind}: {case.detail}".replace(folder, "FOLDER").replace(f"{ROOT}/", "") for case in bad]
        publish_part("attack", "Attacks", f"Attack on {part}", order, facts, body)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
