"""Damage to the files of a run, and how commands react.

A mutation is one change of one file, drawn from a seed. A command must then fail with one error message, or give
exactly the output that it gives with the undamaged run.
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
ERROR_CODES = {3, 65, 66, 73, 74, 78}
TIMEOUT = 60
"""Seconds after which a command counts as hanging."""
JSON_VALUES = (None, True, -1, 1.5, "text", [], {}, 10**30)
ALWAYS_WRONG = (True, [], {})
"""Values that are wrong for every entry of another type."""


class Outcome(NamedTuple):
    """The result of a command with a damaged run."""

    command: str
    verdict: str
    """same, refused, silent, traceback or hanging."""
    detail: str


class Subject(NamedTuple):
    """A run to be damaged, with the results of commands for the undamaged run."""

    folder: Path
    """Contains recipe.yaml, input.txt, runs/ and other/, a run with another seed."""
    finished: bool
    answers: Mapping[str, Any]


def make_subject(folder: Path, *, finished: bool) -> Subject:
    """Train a run to its end, or stop after its third validation, as a kill would."""
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
        step_6 = stop_at(lambda event: isinstance(event, SavedEvent) and event.step == 6)
        record_events(train, settings, watch=step_6)
    subject = Subject(folder, finished, {})
    answers = {name: command(folder / "whole") for name, command in _commands(subject)}
    return subject._replace(answers=answers)


def _train(folder: Path, out: str | Path, seed: int = 1) -> tuple[int, str, str]:
    words = ("--quiet", "--device", "cpu", "--seed", str(seed), "--out", str(folder / out))
    return call("train", str(folder / "recipe.yaml"), *words)


def call(*words: str) -> tuple[int, str, str]:
    """Run attnkit in this process; return exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def run_in(out: Path) -> Path:
    """Return the path of the only run below `out`."""
    return next(out.glob("recipe/base/seed-*"))


def _commands(subject: Subject) -> Iterator[tuple[str, Callable[[Path], Any]]]:
    """Yield functions that take a folder of runs and return exit code, results that must not change, and messages."""

    def train(out: Path) -> Any:
        code, _, err = _train(subject.folder, out)
        if code:
            return code, None, err
        run = Run.open(run_in(out))
        weights = sha256_file(run.path / "model.safetensors")
        metrics = {split: scores.metrics for split, scores in run.scores().items()}
        return code, (weights, run.log.digest(), metrics), err

    def evaluate(out: Path) -> Any:
        code, text, err = call("eval", str(out / "recipe"), "--format", "json", "--device", "cpu")
        return code, json.loads(text)["rows"][0]["metrics"] if code == 0 else None, err

    def generate(out: Path) -> Any:
        return call("generate", str(run_in(out)), str(subject.folder / "input.txt"), "--device", "cpu")

    def verify(out: Path) -> Any:
        code, _, err = call("verify", str(run_in(out)))
        return code, None, err

    if subject.finished:
        yield "verify", verify
        yield "generate", generate
        yield "eval", evaluate
    yield "train", train


def run_damaged(subject: Subject, copy: Path, seed: int) -> tuple[str, list[Outcome]]:
    """Damage a copy of the run; return the kind of damage and the outcome of each command."""
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(subject.folder / "runs", copy)
    kind = mutate(run_in(copy), run_in(subject.folder / "other"), random.Random(seed))
    return kind, [_outcome(subject, copy, name, command) for name, command in _commands(subject)]


def _outcome(subject: Subject, out: Path, name: str, command: Callable[[Path], Any]) -> Outcome:
    def timeout(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, timeout)
    signal.alarm(TIMEOUT)
    try:
        code, answer, err = command(out)
    except TimeoutError:
        return Outcome(name, "hanging", "")
    except BaseException as error:  # an exception that the command line does not catch is a bug
        return Outcome(name, "traceback", repr(error))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if code == 0:
        return Outcome(name, "same" if answer == subject.answers[name][1] else "silent", err)
    errors = [line for line in err.splitlines() if line.startswith("attnkit: error: ")]
    refused = code in ERROR_CODES and len(errors) == 1 and "Traceback" not in err
    return Outcome(name, "refused" if refused else "traceback", err)


def mutate(run: Path, other: Path, draw: random.Random) -> str:
    """Change one file of a run; return the file and the kind of change."""
    path = draw.choice(_files(run))
    kinds: dict[str, Callable[[Path, Path, random.Random], object]] = {
        "bit": _flip_bit,
        "splice": _splice,
        "truncation": _truncate,
        "empty": lambda path, *_: path.write_bytes(b""),
        "missing": lambda path, *_: path.unlink(),
        "swap": _swap,
        "of another run": _replace,
        "pipe": _make_pipe,
        "folder": _make_folder,
    }
    if path.suffix == ".json":
        kinds |= {"wrong type": _wrong_type, "wrong type, signed": _signed_wrong_type, "extra key": _extra_key}
    if path.suffix == ".safetensors":
        kinds |= TENSOR_KINDS
    kind = draw.choice(sorted(kinds))
    kinds[kind](path, other / path.relative_to(run), draw)
    if kind in TENSOR_KINDS and draw.random() < 0.7:
        sign(path)
        kind += ", signed"
    return f"{path.relative_to(run).as_posix()}: {kind}"


def _files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")


def _flip_bit(path: Path, _: Path, draw: random.Random) -> None:
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


def _swap(path: Path, _: Path, draw: random.Random) -> None:
    """Swap with a file of the same name in another checkpoint; without one, with any other file."""
    run = next(parent for parent in path.parents if (parent / "recipe.yaml").exists())
    others = [other for other in _files(run) if other != path]
    other = draw.choice([other for other in others if other.name == path.name] or others)
    data = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(data)


def _replace(path: Path, other: Path, _: random.Random) -> None:
    if other.is_file():
        path.write_bytes(other.read_bytes())


def _make_pipe(path: Path, *_: Any) -> None:
    path.unlink()
    os.mkfifo(path)


def _make_folder(path: Path, *_: Any) -> None:
    path.unlink()
    path.mkdir()


def _leaves(value: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each value."""
    if keys:
        yield keys
    indices = range(len(value)) if isinstance(value, list) else ()
    for key in value if isinstance(value, dict) else indices:
        yield from _leaves(value[key], (*keys, key))


def _wrong_type(path: Path, _: Path, draw: random.Random, values: Sequence[Any] = JSON_VALUES) -> None:
    """Replace one JSON value by one of another type."""
    content = json.loads(path.read_bytes())
    *above, last = draw.choice(list(_leaves(content)))
    parent = content
    for key in above:
        parent = parent[key]
    parent[last] = draw.choice([value for value in values if type(value) is not type(parent[last])])
    path.write_text(json.dumps(content), encoding="utf-8")


def _signed_wrong_type(path: Path, other: Path, draw: random.Random) -> None:
    _wrong_type(path, other, draw, ALWAYS_WRONG)
    sign(path)


def _extra_key(path: Path, *_: Any) -> None:
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps(content | {"extra": [1, {"a": None}]}), encoding="utf-8")


def sign(path: Path) -> None:
    """Update the hash of a changed file in its manifest, as a bug of attnkit would."""
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
            name, digest = path.relative_to(folder).as_posix(), sha256_file(path)
            entry = {"size": path.stat().st_size, "sha256": digest}
            value["files"][name] = entry if isinstance(value["files"].get(name), dict) else digest
            manifest.write_text(json.dumps(value), encoding="utf-8")
            sign(manifest)
            return


def _change_tensor(change: Callable[[dict[str, torch.Tensor], str], object]) -> Any:
    def mutation(path: Path, _: Path, draw: random.Random) -> None:
        tensors = load_file(path)
        change(tensors, draw.choice(sorted(tensors)))
        save_file(tensors, path)

    return mutation


TENSOR_KINDS = {
    "NaN": _change_tensor(
        lambda tensors, name: tensors.update({name: torch.full_like(tensors[name], torch.nan, dtype=torch.float32)})
    ),
    "shape": _change_tensor(lambda tensors, name: tensors.update({name: tensors[name].reshape(-1).repeat(2)})),
    "missing tensor": _change_tensor(lambda tensors, name: tensors.pop(name)),
    "extra tensor": _change_tensor(lambda tensors, name: tensors.update(extra=tensors[name].clone())),
}
