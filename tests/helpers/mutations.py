"""Damage to the files of a run, and what the commands make of it.

A mutation is one change of one file, drawn from a seed.  Whatever it is, a command must refuse the
run in one line, or answer exactly as it does with the undamaged run.
"""

import contextlib
import io
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file

from attnkit.cli import main
from attnkit.recipe import load
from attnkit.runs import Run
from attnkit.runs.json_files import StoredSplit
from attnkit.storage.files import sha256_file, sha256_json
from attnkit.train.events import SavedEvent
from helpers.events import record_events, stop_at
from helpers.small import write_corpus

RECIPE = """\
task: translation
data: {{train: [{0}/train.source, {0}/train.target], valid: [{0}/valid.source, {0}/valid.target],
       test: [{0}/test.source, {0}/test.target], max_length: 32}}
tokenizer: {{type: word, size: 40}}
model: {{width: 8, layers: 1, heads: 2, ff: 8, dropout: 0.2}}
train: {{steps: 10, batch_tokens: 56, lr: 5e-3, warmup: 4, average: 3, valid_every: 2, log_every: 1,
        precision: fp32}}
search: {{method: greedy, max_length: 8, min_length: 4}}
eval: {{metrics: [bleu, perplexity], bootstrap: 0}}
"""
REFUSALS = {3, 65, 66, 73, 74, 78}
SECONDS = 60
"""After which a command counts as hanging."""
OTHERS = (None, True, -1, 1.5, "text", [], {}, 10**30)
NEVER_RIGHT = (True, [], {})
"""Values that no entry may have where it has something else."""


class Outcome(NamedTuple):
    """What a command made of a damaged run."""

    command: str
    verdict: str
    """same, refused, silent, traceback or hanging."""
    detail: str


class Subject(NamedTuple):
    """A run to be damaged, with what its commands answer while it is whole."""

    folder: Path
    """Holds recipe.yaml, input.txt, runs/ and other/, a run of another seed."""
    finished: bool
    answers: Mapping[str, Any]


def make_subject(folder: Path, *, finished: bool) -> Subject:
    """Train a run to its end, or leave it as a kill would after its third validation."""
    folder.mkdir(parents=True)
    write_corpus(folder)
    (folder / "recipe.yaml").write_text(RECIPE.format(folder), encoding="utf-8")
    (folder / "input.txt").write_text("red dog sees\nten old cat runs\n", encoding="utf-8")
    for out, seed in (("other", 2), ("whole", 1)):
        assert _train(folder, out, seed)[0] == 0
    if finished:
        shutil.copytree(folder / "whole", folder / "runs")
    else:
        from attnkit.experiment.settings import TrainingSettings
        from attnkit.experiment.training import train

        file = load(str(folder / "recipe.yaml"), [])
        settings = TrainingSettings(file=file, out=folder / "runs", device="cpu")
        sixth = stop_at(lambda event: isinstance(event, SavedEvent) and event.step == 6)
        record_events(train, settings, watch=sixth)
    made = Subject(folder, finished, {})
    answers = {name: command(folder / "whole") for name, command in _commands(made)}
    return made._replace(answers=answers)


def _train(folder: Path, out: str | Path, seed: int = 1) -> tuple[int, str, str]:
    words = ("--quiet", "--device", "cpu", "--seed", str(seed), "--out", str(folder / out))
    return _call("train", str(folder / "recipe.yaml"), *words)


def _call(*words: str) -> tuple[int, str, str]:
    """A command in this process: exit code and what it wrote."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def run_in(out: Path) -> Path:
    """The only run below a root of runs."""
    return next(out.glob("recipe/base/seed-*"))


def _commands(of: Subject) -> Iterator[tuple[str, Callable[[Path], Any]]]:
    """Each gives (exit code, what must not change, messages) for a root of runs."""

    def train(out: Path) -> Any:
        code, _, err = _train(of.folder, out)
        if code:
            return code, None, err
        run = Run.open(run_in(out))
        weights = sha256_file(run.path / "model.safetensors")
        return code, (weights, run.log.digest(), _metrics(run.scores())), err

    def evaluate(out: Path) -> Any:
        code, text, err = _call("eval", str(out / "recipe"), "--format", "json", "--device", "cpu")
        return code, json.loads(text)["rows"][0]["metrics"] if code == 0 else None, err

    def generate(out: Path) -> Any:
        words = (str(run_in(out)), str(of.folder / "input.txt"), "--device", "cpu")
        return _call("generate", *words)

    def verify(out: Path) -> Any:
        code, _, err = _call("verify", str(run_in(out)))
        return code, None, err

    if of.finished:
        yield "verify", verify
        yield "generate", generate
        yield "eval", evaluate
    yield "train", train


def _metrics(scores: Mapping[str, StoredSplit]) -> Any:
    return {split: entry.metrics for split, entry in scores.items()}


def run_damaged(of: Subject, copy: Path, seed: int) -> tuple[str, list[Outcome]]:
    """Damage a copy of the run; the kind of damage, and what each command makes of it."""
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(of.folder / "runs", copy)
    kind = mutate(run_in(copy), run_in(of.folder / "other"), random.Random(seed))
    return kind, [_outcome(of, copy, name, command) for name, command in _commands(of)]


def _outcome(of: Subject, out: Path, name: str, command: Callable[[Path], Any]) -> Outcome:
    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        code, answer, err = command(out)
    except TimeoutError:
        return Outcome(name, "hanging", "")
    except BaseException as error:  # anything that leaves the command line is a fault
        return Outcome(name, "traceback", repr(error))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if code == 0:
        return Outcome(name, "same" if answer == of.answers[name][1] else "silent", err)
    last = [line for line in err.splitlines() if line.startswith("attnkit: error: ")]
    fine = code in REFUSALS and len(last) == 1 and "Traceback" not in err
    return Outcome(name, "refused" if fine else "traceback", err)


def mutate(run: Path, other: Path, draw: random.Random) -> str:
    """Change one file of a run; says how."""
    paths = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    path = draw.choice(paths)
    kinds: dict[str, Callable[[Path, Path, random.Random], object]] = {
        "bit": _bit,
        "splice": _splice,
        "truncation": _truncate,
        "empty": _empty,
        "missing": lambda path, *_: path.unlink(),
        "swap": _swap,
        "of another run": _replace,
        "pipe": _pipe,
        "folder": _folder,
    }
    if path.suffix == ".json":
        kinds |= {"wrong type": _wrong_type, "wrong type, signed": _signed_type, "extra key": _extra_key}
    if path.suffix == ".safetensors":
        kinds |= {"NaN": _nan, "shape": _shape, "missing tensor": _no_tensor, "extra tensor": _more_tensors}
    kind = draw.choice(sorted(kinds))
    kinds[kind](path, other / path.relative_to(run), draw)
    if kind in ("NaN", "shape", "missing tensor", "extra tensor") and draw.random() < 0.7:
        sign(path)
        kind += ", signed"
    return f"{path.relative_to(run).as_posix()}: {kind}"


def _bit(path: Path, _: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def _splice(path: Path, _: Path, draw: random.Random) -> None:
    data = path.read_bytes()
    at, length = draw.randrange(len(data) + 1), draw.randrange(1, 30)
    path.write_bytes(data[:at] + draw.randbytes(length) + data[at + draw.choice((0, length)) :])


def _truncate(path: Path, _: Path, draw: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(max(1, len(data)))])


def _empty(path: Path, *_: Any) -> None:
    path.write_bytes(b"")


def _swap(path: Path, _: Path, draw: random.Random) -> None:
    """With another file of the same name (of another checkpoint), or any other."""
    run = next(parent for parent in path.parents if (parent / "recipe.yaml").exists())
    some = sorted(p for p in run.rglob("*") if p.is_file() and p != path and p.name != ".lock")
    twin = draw.choice([p for p in some if p.name == path.name] or some)
    ours, theirs = path.read_bytes(), twin.read_bytes()
    path.write_bytes(theirs)
    twin.write_bytes(ours)


def _replace(path: Path, twin: Path, _: random.Random) -> None:
    if twin.is_file():
        path.write_bytes(twin.read_bytes())


def _pipe(path: Path, *_: Any) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path, *_: Any) -> None:
    path.unlink()
    path.mkdir()


def _leaves(value: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to each value."""
    if keys:
        yield keys
    inside = range(len(value)) if isinstance(value, list) else ()
    for key in value if isinstance(value, dict) else inside:
        yield from _leaves(value[key], (*keys, key))


def _wrong_type(path: Path, _: Path, draw: random.Random, others: Sequence[Any] = OTHERS) -> None:
    """Another JSON value in one place."""
    value = json.loads(path.read_bytes())
    *above, last = draw.choice(list(_leaves(value)))
    place = value
    for key in above:
        place = place[key]
    kinds = [one for one in others if type(one) is not type(place[last])]
    place[last] = draw.choice(kinds)
    path.write_text(json.dumps(value), encoding="utf-8")


def _signed_type(path: Path, other: Path, draw: random.Random) -> None:
    _wrong_type(path, other, draw, NEVER_RIGHT)
    sign(path)


def _extra_key(path: Path, *_: Any) -> None:
    value = json.loads(path.read_bytes())
    path.write_text(json.dumps(value | {"extra": [1, {"a": None}]}), encoding="utf-8")


def sign(path: Path) -> None:
    """Make the manifest that covers a file agree with it, as a bug of attnkit would."""
    if path.name == "manifest.json":
        value = json.loads(path.read_bytes())
        if "sha256" in value:
            rest = {key: value[key] for key in value if key != "sha256"}
            path.write_text(json.dumps(rest | {"sha256": sha256_json(rest)}), encoding="utf-8")
        return
    for folder in path.parents:
        manifest = folder / "manifest.json"
        if manifest.exists():
            value = json.loads(manifest.read_bytes())
            name = path.relative_to(folder).as_posix()
            digest = sha256_file(path)
            old = value["files"].get(name)
            size = {"size": path.stat().st_size, "sha256": digest}
            value["files"][name] = size if isinstance(old, dict) else digest
            manifest.write_text(json.dumps(value), encoding="utf-8")
            sign(manifest)
            return


def _tensors(change: Callable[[dict[str, torch.Tensor], str], object]) -> Any:
    def mutation(path: Path, _: Path, draw: random.Random) -> None:
        tensors = load_file(path)
        change(tensors, draw.choice(sorted(tensors)))
        save_file(tensors, path)

    return mutation


def _poison(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = torch.full_like(tensors[name], torch.nan, dtype=torch.float32)


def _widen(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = torch.cat([tensors[name].reshape(-1), tensors[name].reshape(-1)])


_nan, _shape = _tensors(_poison), _tensors(_widen)
_no_tensor = _tensors(lambda tensors, name: tensors.pop(name))
_more_tensors = _tensors(lambda tensors, name: tensors.update(extra=tensors[name].clone()))
