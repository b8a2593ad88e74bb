"""Whether stops, damage, crafted files or concurrent commands go undetected, or leave something behind.

    python benchmarks/attack.py [--part PART ...] [--count N] [--minutes 60] [--seed 1]

Each part draws its cases from the seed, until it has `--count` (default: as in PARTS) or `--minutes` are over:

- stops: a command gets one of six signals at a random moment, alone, with all its children, or one child gets it. It
  must end with the exit code for that, without traceback or remaining process; started again it must end well, with
  runs that verify and without temporary files, also in $TMPDIR.
- flips: one bit of one file of a finished or a stopped run is flipped; `verify` must detect it, unless the file still
  reads the same.
- crafted: an entry in a JSON file or row of a run gets another type or is removed, and all hashes are made to agree;
  the commands must refuse it in one line or go on.
- pretrained: the same in the settings of a Hugging Face model, or an index of weights that leads to a pickle or out of
  the folder; opening it must be refused in one line, or give a model.
- caches: a bit, an entry or a file of the cache is changed; a training with it must give the same weights as without.
- races: every reader of runs beside every writer (`eval --fresh`, `train --fresh`, `runs clean`).
- lookups: commands that import libraries which can contact servers, under a C library that records and refuses
  look-ups and connections.

Most commands of stops and races are forked from this process, which has imported what they need; every fifth starts
its own Python. Writes results/attack.md; the exit code is 1 if there was a fault.
"""

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

from common import ROOT, arguments, attnkit, environment, facts, publish, say, table
from helpers import mutations
from helpers.attacks import Case, judge, run_attnkit, sign_rows
from helpers.network import guarded_environment, network_calls
from helpers.pretrained import save_pretrained
from helpers.small import write_corpus

from attnkit.cli import script
from attnkit.errors import AttnkitError, OutputPathError
from attnkit.experiment.verification import verify
from attnkit.huggingface import open_model
from attnkit.storage.files import sha256_json

OTHER_VALUES: tuple[Any, ...] = (None, True, -1, 1.5, "text", [], {}, [[]], 10**30, 10**400, "\ud800")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL, signal.SIGABRT)
TARGETS = ("alone", "with its children", "to a child")
CHILD_ENDED = (1, 69, 71)
"""Exit codes that a command may have if one of its children was ended."""
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
COMMANDS = f"""
train toy.yaml --device cpu --out new
train toy.yaml --device cpu --out new --jobs 2
eval runs/toy --fresh --device cpu
generate {RUN} text -o out.txt --device cpu
export {RUN} out --to huggingface
export {RUN} out --to ctranslate2
export {RUN} out --to onnx
runs pack runs/toy --results -o packed
report runs/toy -o out.html
plot runs/toy --save out.svg
verify runs/toy
recipe copy quickstart out.yaml
data encode toy.yaml
slurm toy.yaml --save out.sh
visualize-attn {RUN} dog --save out.npz --device cpu
train toy.yaml --device cpu --out new --nproc 2
convert {RUN} --attention linear --transfer 2 --tune 3 --device cpu --out new
align {RUN} text text -o out.txt --device cpu
probe heads {RUN} --rows 4 --device cpu
nbce {RUN} --context text --prompt two --max-length 3 --trace --device cpu
bench attention linear --lengths 64,128 --repeats 1 --budget 1
bench train toy.yaml --updates 2 --profile out.json --device cpu
compare runs/toy/base runs/toy/dot
runs clean runs/toy --yes
runs runs/toy
demo --out out
check linear
doctor --device cpu
mechanisms linear
""".strip().splitlines()
READERS = f"""
verify runs/toy
report runs/toy -o page.html
runs pack runs/toy --results -o packed
runs runs/toy
plot runs/toy
eval runs/toy --device cpu
generate {RUN} text --device cpu
""".strip().splitlines()
WRITERS = """
eval runs/toy --fresh --device cpu --metrics bleu
runs clean runs/toy --yes
eval runs/toy --fresh --device cpu --metrics chrf
train toy.yaml --device cpu --fresh --quiet
""".strip().splitlines()
IN_TRAINING = ("is being trained", "not scored yet", "is not finished", "unfinished", "was trained meanwhile")
"""Reasons for which readers may refuse a run during a training."""
IMPORTED = (
    *("transformers", "torch.fx.experimental.symbolic_shapes", "sacrebleu", "numpy"),
    *("attnkit.experiment.experiment", "attnkit.experiment.verification"),
)
"""Modules that are imported before commands are forked."""
LOOKUPS = f"""
train toy.yaml --device cpu --out new
eval runs/toy --device cpu
export {RUN} out --to huggingface
export {RUN} out2 --to onnx
export {RUN} out3 --to ctranslate2
plot runs/toy --save out.svg
report runs/toy -o out.html
train toy.yaml --device cpu --out log train.log_to=[tensorboard]
nbce model --context text --prompt two --device cpu --max-length 3
""".strip().splitlines()


def write_toy(folder: Path) -> None:
    """Write a recipe with its corpus, and a text."""
    folder.mkdir(parents=True)
    write_corpus(folder)
    (folder / "toy.yaml").write_text(TOY)
    (folder / "text").write_text("one red dog\ntwo cats\n")


def train_toy(folder: Path) -> None:
    """Write the toy and train its runs, with a cache of their own."""
    write_toy(folder)
    words = ("train", "toy.yaml", "--device", "cpu", "--quiet")
    subprocess.run(attnkit(*words), cwd=folder, env=isolated(folder), check=True)


def isolated(folder: Path) -> dict[str, str]:
    """Return an environment with one thread, and with caches and temporary files in a folder."""
    (folder / "tmp").mkdir(exist_ok=True)
    caches = dict.fromkeys(("ATTNKIT_CACHE", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR"), str(folder / "cache"))
    return environment(1, **caches, TMPDIR=str(folder / "tmp"), ATTACKED=str(folder))


def start(words: str, folder: Path, fresh: bool = False) -> "subprocess.Popen[str]":
    """Start a command, forked from this process or in a fresh Python."""
    env = isolated(folder)

    def forked() -> None:  # never returns; closes the pipe that would report a failed start
        os.closerange(3, 1024)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as every Python does at its start
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "rww"[n]) for n in range(3))
        os.environ.update(env)
        tempfile.tempdir, sys.argv = None, ["attnkit", *words.split()]
        script()

    if not fresh:
        for name in IMPORTED:
            import_module(name)
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "start_new_session": True}
    function = None if fresh else forked
    return subprocess.Popen(attnkit(*words.split()), cwd=folder, env=env, text=True, preexec_fn=function, **pipes)


def processes(folder: Path, session: int) -> list[int]:
    """Return the running processes that were started for a folder or belong to a session."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, own = (place / "stat").read_text().rsplit(")", 1)[1].split()[:4]
            ours = f"ATTACKED={folder}".encode() in (place / "environ").read_bytes()
            if (ours or own == str(session)) and state != "Z":
                found.append(int(place.name))
    return found


def stops(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Send signals to commands."""
    durations, at = dict[tuple[str, bool], float](), folder / "case"
    while True:
        words, number, target = draw.choice(COMMANDS), draw.choice(SIGNALS), draw.choice(TARGETS)
        shutil.rmtree(at, ignore_errors=True)
        shutil.copytree(folder / "whole", at)
        faults = list[str]()
        began, fresh = time.monotonic(), draw.random() < 0.2
        process = start(words, at, fresh)
        with contextlib.suppress(subprocess.TimeoutExpired):
            longest = durations.get((words, fresh), 12.0 if fresh else 4.0)
            process.wait(draw.uniform(0.1 if fresh else 0.01, longest))
        if process.poll() is None:
            children = [pid for pid in processes(at, process.pid) if pid != process.pid]
            target = target if children else "alone"
            with contextlib.suppress(ProcessLookupError):
                if target == "with its children":
                    os.killpg(process.pid, number)
                else:
                    os.kill(draw.choice(children) if target == "to a child" else process.pid, number)
        else:
            durations[words, fresh] = time.monotonic() - began
        err = process.communicate(timeout=60)[1]
        allowed = {0, 75, 128 + number, -number, 71, *(CHILD_ENDED if target == "to a child" else ())}
        if process.returncode not in allowed or "Traceback" in err and number != signal.SIGABRT:
            faults.append(f"code {process.returncode}: {err[-200:]}")
        deadline = time.monotonic() + 10
        while (left := processes(at, process.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            faults.append(f"processes live on: {left}")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        outputs = (at / "out", at / "out.yaml")
        if process.returncode == 0:
            for path in outputs:
                with contextlib.suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        written = any(path.exists() for path in outputs)  # before the signal
        again = start(words, at)
        err = again.communicate(timeout=120)[1]
        if again.returncode and not (written and again.returncode == OutputPathError.code):
            faults.append(f"started again: {again.returncode}: {err[-200:]}")
        checked = start("verify runs/toy", at)
        err = checked.communicate(timeout=120)[1]
        if checked.returncode:
            faults.append(f"verify: {checked.returncode}: {err[-200:]}")
        names = [path for path in at.rglob("*.tmp-*") if "cache" not in path.parts] or [*(at / "tmp").iterdir()]
        if names:
            faults.append(f"left: {', '.join(str(path.relative_to(at)) for path in names[:3])}")
        kind = " ".join(words.split()[: 2 if words[:4] in ("runs", "data") else 1])
        detail = f"{words}, {signal.Signals(number).name} {target}: {'; '.join(faults)}"
        yield Case(kind, "FAULT" if faults else "fine", detail)


def subjects(folder: Path) -> list[Path]:
    """Return a finished and a stopped run."""
    names = ("finished", "stopped")
    made = [mutations.make_subject(folder / name, finished=name == "finished") for name in names]
    return [mutations.run_in(subject.folder / "runs") for subject in made]


def flip(data: bytes, draw: random.Random) -> bytes:
    """Return the data with one bit flipped."""
    changed = bytearray(data)
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def flips(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Flip bits of files, and call `verify`."""
    runs = subjects(folder)
    while True:
        run = draw.choice(runs)
        files = [path for path in run.rglob("*") if path.is_file() and path.name != ".lock" and path.stat().st_size]
        path = draw.choice(files)
        original = path.read_bytes()
        changed = flip(original, draw)
        path.write_bytes(changed)
        kind = "outputs" if path.name.endswith(("hyp.txt", "stats.npz")) else path.name
        try:
            if any(check.state == "different" for check in verify(run)):
                verdict = "found"
            else:
                verdict = "reads the same" if path.suffix == ".json" and equal(original, changed) else "FAULT"
            yield Case(kind, verdict, str(path))
        except GeneratorExit:
            raise
        except BaseException as error:
            yield Case(kind, "FAULT", f"{path}: {error!r}")
        finally:
            path.write_bytes(original)


def equal(one: bytes, other: bytes) -> bool:
    """Whether two JSON documents have the same content."""
    with contextlib.suppress(ValueError):
        return bool(json.loads(one) == json.loads(other))
    return False


def change_entry(value: Any, draw: random.Random) -> Any:
    """Return a copy of a JSON value in which one entry has another type or is missing."""
    value = json.loads(json.dumps(value))
    places = list(mutations._leaves(value))
    if not places:
        return draw.choice(OTHER_VALUES)
    *above, last = draw.choice(places)
    place = value
    for key in above:
        place = place[key]
    if draw.random() < 0.2 and isinstance(place, dict):
        del place[last]
    else:
        place[last] = draw.choice(OTHER_VALUES)
    return value


def crafted(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Write well-formed, signed JSON with wrong content, and call commands."""
    run = subjects(folder)[0]
    copy = folder / "copy/recipe/base/seed-1"
    commands = [
        *(["verify", copy], ["eval", copy], ["report", copy, "-o", folder / "page.html"]),
        *(["plot", copy], ["runs", copy], ["generate", copy, folder / "finished/input.txt", "--device", "cpu"]),
        ["runs", "pack", copy, "--results", "-o", folder / "packed"],
    ]
    while True:
        shutil.rmtree(folder / "copy", ignore_errors=True)
        shutil.copytree(run, copy)
        path = draw.choice([*copy.glob("*.json*"), *(copy / "data").iterdir()])
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        at = draw.randrange(len(lines))
        lines[at] = json.dumps(change_entry(json.loads(lines[at]), draw))
        path.write_text("\n".join(lines) + "\n")
        if path.parent.name == "data" and path.suffix == ".jsonl":
            sign_rows(path)
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            mutations.sign(path)  # files that cannot be signed are refused by their hash
        words = list(map(str, draw.choice(commands)))
        case = judge(f"{path.name}, {words[0]}", *run_attnkit(*words))
        yield case._replace(detail=f"{case.detail} {lines[at][:300]}" if case.detail else "")


def pretrained(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Change the settings of Hugging Face models, and open them."""
    original = save_pretrained(folder / "gpt2", "gpt2")
    while True:
        copy = Path(shutil.copytree(original, folder / "copy", dirs_exist_ok=True))
        kind = draw.choice(["index", *(path.name for path in original.glob("*.json"))])
        path = copy / (kind if kind != "index" else "model.safetensors.index.json")
        value: Any = {"metadata": {}, "weight_map": {"wte": "model.safetensors"}}
        if kind == "index" and draw.random() < 0.5:
            names = ("pytorch_model.bin", "../x.safetensors", "/x.safetensors", "x/y.safetensors")
            value["weight_map"]["wte"] = draw.choice(names)
        else:
            value = change_entry(value if kind == "index" else json.loads(path.read_bytes()), draw)
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
    """Change files of the cache, and train with it."""
    run, cache, out = "toy/base/seed-1/model.safetensors", folder / "cache", folder / "out"
    weights = (folder / "whole/runs" / run).read_bytes()
    os.environ["ATTNKIT_CACHE"] = str(cache)
    while True:
        for path in (cache, out):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(folder / "whole/cache", cache)
        path = draw.choice([path for path in cache.rglob("*") if path.is_file() and path.stat().st_size])
        if path.suffix == ".json" and draw.random() < 0.6:
            value = change_entry(json.loads(path.read_bytes()), draw)
            if isinstance(value, dict) and draw.random() < 0.6:
                with contextlib.suppress(ValueError):
                    value["sha256"] = sha256_json(value.get("content" if "content" in value else "value"))
            path.write_text(json.dumps(value))
        else:
            path.write_bytes(flip(path.read_bytes(), draw))
        words = ("--device", "cpu", "--quiet", "--variant", "base", "--seed", "1", "--out", str(out))
        code, err = run_attnkit("train", str(folder / "whole/toy.yaml"), *words)
        same = code == 0 and (out / run).read_bytes() == weights
        kind = path.relative_to(cache).parts[0]
        yield Case(kind, "same weights" if same else "FAULT", f"{path}: {code}: {err[-300:]}")


def races(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Run readers beside writers."""
    at = folder / "whole"
    pairs = [(reader, writer) for writer in WRITERS for reader in READERS]
    while True:
        for reading, writing in draw.sample(pairs, len(pairs)):
            writer = start(writing, at)
            time.sleep(draw.uniform(0, 1))
            reader = start(reading, at)
            while reader.poll() is None:
                if writer.poll() is not None:
                    writer = start(writing, at)
                time.sleep(0.02)
            code, err = reader.returncode, reader.communicate()[1]
            untrained = writing.startswith("train") and any(text in err for text in IN_TRAINING)
            fine = (code == 0 or code in (66, 69) and untrained) and "not a run" not in err
            detail = f"{reading} beside {writing}: {code}: {err[-300:]}"
            err = writer.communicate()[1]
            if writer.returncode:
                fine, detail = False, f"{detail} {writer.returncode}: {err[-300:]}"
            kind = " ".join(reading.split()[: 1 + reading.startswith("runs p")])
            yield Case(f"{kind} beside {writing.split()[0]}", "fine" if fine else "FAULT", detail)


def lookups(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Run commands under the guard of the network."""
    at = folder / "whole"
    save_pretrained(at / "model", "llama")
    env = {**isolated(at), **guarded_environment(folder / "guard")}
    for words in LOOKUPS:
        done = subprocess.run(attnkit(*words.split()), cwd=at, env=env, capture_output=True)
        found = network_calls(folder / "guard")
        verdict = {0: "none", 69: "not installed"}.get(done.returncode, "FAULT")
        detail = f"{done.returncode}: {done.stderr[-200:]!r} {found}"
        yield Case(words.split()[0], "FAULT" if found else verdict, detail)


PARTS: dict[str, tuple[Callable[[Path, random.Random], Iterator[Case]], int]] = {
    "stops": (stops, 300),
    "flips": (flips, 20_000),
    "crafted": (crafted, 1000),
    "pretrained": (pretrained, 500),
    "caches": (caches, 200),
    "races": (races, 60),
    "lookups": (lookups, len(LOOKUPS)),
}
"""Parts with their default number of cases."""


def attempts(part: str, count: int, minutes: float, seed: int, folder: Path) -> list[Case]:
    """Return the cases of a part, until all are there or the time is over."""
    found, until = list[Case](), time.monotonic() + 60 * minutes
    if part in ("stops", "caches", "races", "lookups"):
        train_toy(folder / part / "whole")
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
    options = arguments(__doc__, part=[*PARTS], count=int, minutes=60.0, seed=1)
    faults = 0
    for part in options.part or PARTS:
        about, began = facts(options), time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            count = options.count or PARTS[part][1]
            cases = attempts(part, count, options.minutes, options.seed, Path(folder))
        found: dict[str, Counter[str]] = {}
        for case in cases:
            found.setdefault(case.kind, Counter())[case.verdict] += 1
        bad = [case for case in cases if case.verdict == "FAULT"]
        faults += len(bad)
        verdicts = sorted({case.verdict for case in cases} | {"FAULT"})
        minutes = (time.monotonic() - began) / 60
        about["result"] = f"**{len(cases):,} cases, {len(bad):,} faults**, in {minutes:.0f} min"
        counts = table(
            ["kind", *verdicts], [(kind, *(found[kind][one] for one in verdicts)) for kind in sorted(found)]
        )
        details = "\n".join(f"- {case.kind}: {case.detail}" for case in bad)
        body = [counts, details.replace(folder, "FOLDER").replace(f"{ROOT}/", "")]
        publish("attack", "Attacks", about, body, f"Attack on {part}", [f"Attack on {name}" for name in PARTS])
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
