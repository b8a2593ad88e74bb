"""Speed of training and decoding and memory, compared with Hugging Face transformers (Marian) and JoeyNMT.

    python benchmarks/peers.py [--data-dir DIR] [--work WORK] [--rounds 4] [--threads N]
        [--parts training memory decoding] [--peers transformers joeynmt] [--recipe RECIPE]

Each peer gets a virtual environment in WORK, created from the package index at the first run, with this Python's build
of torch. Every system is one process; the processes take turns, round after round, so that a change of the machine's
speed affects all of them. Memory is measured in separate processes. Writes results/peers.md; --parts measures some
parts only, --recipe selects the shape and the batches of another recipe; their names are then added to the name of the
page.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import ROOT, arguments, cores, environment, facts, publish, say, spread, table

from attnkit.device import CACHES
from attnkit.recipe.find import resolve

SYSTEMS = Path(__file__).resolve().parent / "systems"
sys.path.insert(0, str(SYSTEMS))

PACKAGES = {
    "transformers": (("torch", "numpy", "sentencepiece", "transformers==5.23.0"),),
    "joeynmt": (
        ("torch", "numpy<2"),
        ("--no-deps", "joeynmt==2.3.0"),  # its pinned protobuf cannot be installed any more
        (
            *("numpy<2", "sacrebleu", "sentencepiece", "pyyaml", "tensorboard", "matplotlib", "seaborn", "pandas"),
            *("subword-nmt", "sacremoses", "packaging", "datasets", "importlib-metadata"),
        ),
    ),
}
"""Arguments of the pip commands that create the environment of each peer."""
RECIPE = ROOT / "benchmarks/peers.yaml"
SECONDS, SENTENCES = 6.0, 1000
"""Duration of training, and sentences to decode, in each round."""
SIZES = (16, 32, 64, 128)
"""Sentences a batch that decoding is tried with; the fastest is measured."""
TOKENS = 11
"""Length of every decoded output."""
POOL = 200
"""Batches that a peer trains on before it starts over."""
WARM_UP = 2
"""Updates of each system before the first measured one."""
UPDATES = 10
"""Updates whose peak memory is measured."""
PARTS = ["training", "memory", "decoding"]
PRECISIONS = ("fp32", "bf16")
LABELS = {"attnkit": "attnkit", "transformers": "transformers Marian", "joeynmt": "JoeyNMT"}
MODULES = {"attnkit": "ours", "transformers": "marian", "joeynmt": "joey"}
TRAINING_NOTES = """\
Training: random weights, AdamW, label smoothing {label_smoothing}, clipping at {clip}, dropout {dropout}. attnkit is
driven through `attnkit.train.fit.fit`, the loop of `attnkit train`, logging every update. transformers gets attnkit's
batches as ready tensors, the fused attention kernel, fused AdamW and one cross entropy over all positions; bf16 is
autocast. JoeyNMT makes its own batches of as many tokens (it has no buckets), and its speed is read from its log."""
MEMORY_NOTES = f"""\
Memory: of a separate process, before the first of {UPDATES} updates and the maximum during them; JoeyNMT makes its own
batches, of as many tokens. The difference consists of gradients, moments of the optimizer and activations; for attnkit
also of the weights of the trained model. Ratios are of the differences, in the same precision. attnkit runs with the
settings of its commands: it keeps freed memory, and few compiled products."""
DECODING_NOTES = f"""\
Decoding: the weights are random, so every output is made {TOKENS} tokens long (the end token is forbidden; for JoeyNMT
the length is only limited, and its mean is checked). attnkit goes from text to text with the batches of `attnkit
generate`; the peers use the fastest of {", ".join(map(str, SIZES))} sentences a batch: transformers from ids to ids,
with sentences sorted by length, JoeyNMT by its `predict`, timed by its log."""

Speeds = dict[str, list[float]]
"""System -> one speed a round."""


class Process:
    """A system that waits for requests; see systems/serve.py."""

    def __init__(self, name: str, options: argparse.Namespace, work: Path) -> None:
        self.name, self.log = name, work / f"{name}.log"
        python = sys.executable if name == "attnkit" else python_of(name, work)
        words = [python, SYSTEMS / f"{MODULES[name]}.py", work, *([options.recipe] if name == "attnkit" else [])]
        caches = CACHES if name == "attnkit" else {}  # as its commands set them
        env = environment(options.threads, TQDM_DISABLE="1", **caches)
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with self.log.open("w") as errors:
            self.child = subprocess.Popen([*map(str, words)], text=True, stderr=errors, env=env, cwd=ROOT, **pipes)
        say(f"{name}: starting")
        self.about = self.ask("about")

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer to one request.

        Raises:
            SystemExit: the process died; the end of its log is shown.
        """
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        try:
            self.child.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.child.stdin.flush()
            answer = self.child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            lines = self.log.read_text(errors="replace").splitlines()[-15:]
            raise SystemExit("\n".join([f"{self.name} failed:", *lines]))
        return dict(json.loads(answer))

    def close(self) -> None:
        self.child.kill()
        self.child.communicate()


def python_of(name: str, work: Path) -> Path:
    """Return the Python of the environment of a peer, which is created if it is missing or outdated.

    Raises:
        SystemExit: pip failed; its error is shown.
    """
    folder = work / "environments" / name
    record, python = folder / "complete.json", folder / "bin/python"
    expected = json.dumps([PACKAGES[name], version("torch"), sys.version])
    if record.exists() and record.read_text() == expected:
        return python
    say(f"{name}: creating its environment")
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    same_torch = folder / "constraints.txt"
    same_torch.write_text(f"torch=={version('torch')}\n")
    for packages in PACKAGES[name]:
        words = [python, "-m", "pip", "install", "-q", "-c", same_torch, *packages]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name}: pip install {' '.join(packages)} failed:\n{done.stderr}")
    record.write_text(expected)
    return python


def refuse_incomparable(recipe: Any, peers: Sequence[str]) -> None:
    """Raise SystemExit if the peers cannot have the shape of the recipe."""
    model = recipe.model
    mechanisms = {getattr(model.attention, place).name for place in model.places}
    required = {
        "a Transformer": model.type == "transformer",
        "an encoder-decoder": model.shape == "encoder-decoder",
        "model.attention scaled-dot": mechanisms == {"scaled-dot"},
        "model.positions sinusoidal": model.positions == "sinusoidal",
        "as many layers on both sides": model.layers.encoder == model.layers.decoder,
        "model.activation relu, gelu or silu": model.activation in ("relu", "gelu", "silu"),
        "model.tie all": model.tie == "all",
        "train.clip above 0": recipe.train.clip > 0,
    }
    if "joeynmt" in peers:
        required["relu (JoeyNMT)"] = model.activation == "relu"
        required["no model.activation_dropout (JoeyNMT)"] = model.activation_dropout is None
    if missing := [name for name, met in required.items() if not met]:
        raise SystemExit(f"the peers need: {', '.join(missing)}")


def prepare_files(options: argparse.Namespace, work: Path) -> tuple[list[str], list[list[int]], np.ndarray]:
    """Write the files of the peers; return test sentences, their ids, and the target tokens of each batch."""
    import ours

    recipe, prepared = ours.data(str(options.recipe), work / "cache")
    refuse_incomparable(recipe, options.peers)
    pool = ours.batches(recipe, prepared, work / "runs", POOL)
    arrays = {
        f"{name}{number}": getattr(batch, name).numpy().astype(np.int32)
        for number, batch in enumerate(pool)
        for name in ("source", "input", "output")
    }
    np.savez(work / "batches.npz", **arrays)
    model, train, vocabulary = recipe.model, recipe.train, prepared.tokenizer.source
    shape = {name: getattr(model, name) for name in ("width", "ff", "heads", "dropout", "activation")}
    shape |= {name: getattr(train, name) for name in ("batch_tokens", "label_smoothing", "clip")}
    inside = model.activation_dropout
    shape |= {
        "activation_dropout": model.dropout if inside is None else inside,
        "layers": model.layers.encoder,
        "vocabulary": len(vocabulary),
        "max_length": recipe.data.max_length,
    }
    (work / "shape.json").write_text(json.dumps(shape))
    (work / "tokenizer.model").write_bytes(vocabulary.model)
    pieces = vocabulary.pieces(range(4, len(vocabulary)))
    (work / "vocabulary.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    for split in ("train", "test"):
        rows = [row for row in prepared.corpus.rows(split) if row.source and row.target]
        for side in ("source", "target"):
            text = "".join(f"{getattr(row, side)}\n" for row in rows)
            (work / f"{split}.{side}").write_text(text, encoding="utf-8")
    texts = [row.source for row in prepared.corpus.rows("test")][:SENTENCES]
    return texts, [[*ids, 3] for ids in vocabulary.encode(texts)], np.array([batch.tokens for batch in pool])


@contextmanager
def started(options: argparse.Namespace, work: Path) -> Iterator[dict[str, Process]]:
    """Start all systems."""
    systems: dict[str, Process] = {}
    try:
        for name in ("attnkit", *options.peers):
            systems[name] = Process(name, options, work)
        yield systems
    finally:
        for process in systems.values():
            process.close()


def measure_memory(options: argparse.Namespace, work: Path) -> dict[str, tuple[int, int]]:
    """Return the bytes before the first update, and the maximum during UPDATES, of each system."""
    found = {}
    for name in ("attnkit", *options.peers):
        for precision in ("fp32",) if name == "joeynmt" else PRECISIONS:
            process = Process(name, options, work)
            before = process.ask("memory")["now"]
            arguments = {} if name == "joeynmt" else {"precision": precision, "start": 0}
            process.ask("train", count=UPDATES, **arguments)
            found[f"{LABELS[name]}, {precision}"] = before, process.ask("memory")["peak"]
            process.close()
    return found


class Training:
    """Measures training speeds, in target tokens per second, round by round."""

    def __init__(self, systems: dict[str, Process], tokens: np.ndarray) -> None:
        self.systems, self.tokens = systems, tokens
        self.speeds: Speeds = defaultdict(list)
        self.lanes = [
            (f"{LABELS[name]}, {precision}", name, precision)
            for name in ("attnkit", "transformers")
            for precision in PRECISIONS
            if name in systems
        ]
        self.position = 0
        self.count = self.joey_count = WARM_UP

    def warm_up(self) -> None:
        """Do a few updates with each system, and choose the number of updates in a round."""
        longest = max(self._seconds(name, precision, WARM_UP) / WARM_UP for _, name, precision in self.lanes)
        self.position, self.count = WARM_UP, max(1, round(SECONDS / longest))
        if "joeynmt" in self.systems:
            speed = self.systems["joeynmt"].ask("train", count=WARM_UP)["speed"]
            self.joey_count = max(1, round(SECONDS * speed / self.tokens.mean()))

    def round(self) -> None:
        """Train attnkit and transformers on the same batches, then JoeyNMT for as long."""
        rows = np.arange(self.position, self.position + self.count) % len(self.tokens)
        tokens = float(self.tokens[rows].sum())
        for label, name, precision in self.lanes:
            self.speeds[label].append(tokens / self._seconds(name, precision, self.count))
        self.position += self.count
        if "joeynmt" in self.systems:
            speed = self.systems["joeynmt"].ask("train", count=self.joey_count)["speed"]
            self.speeds["JoeyNMT, fp32"].append(speed)

    def _seconds(self, name: str, precision: str, count: int) -> float:
        found = self.systems[name].ask("train", precision=precision, start=self.position, count=count)
        return float(found["seconds"])


class Decoding:
    """Measures decoding speeds, in sentences per second, round by round."""

    def __init__(self, systems: dict[str, Process], texts: list[str], ids: list[list[int]]) -> None:
        self.systems, self.texts, self.ids = systems, texts, ids
        self.speeds: Speeds = defaultdict(list)
        self.size: dict[str, int] = {}

    def warm_up(self) -> None:
        """Find the fastest batch size of each peer, on a quarter of the sentences."""
        self.systems["attnkit"].ask("decode", texts=self.texts[::8], tokens=TOKENS)
        for name in self.systems:
            if name != "attnkit":
                self.size[name] = min(SIZES, key=lambda size: self._seconds(name, size, 4))  # noqa: B023

    def round(self) -> None:
        """Decode all sentences with each system."""
        found = self.systems["attnkit"].ask("decode", texts=self.texts, tokens=TOKENS)
        self.speeds["attnkit"].append(len(self.texts) / found["seconds"])
        for name, size in self.size.items():
            self.speeds[f"{LABELS[name]}, {size} a batch"].append(len(self.texts) / self._seconds(name, size, 1))

    def _seconds(self, name: str, size: int, part: int) -> float:
        """Return the seconds for every `part`-th sentence, scaled up to all of them."""
        if name == "transformers":
            sources = self.ids[::part]
            count = len(sources)
            found = self.systems[name].ask("decode", sources=sources, tokens=TOKENS, size=size)
        else:
            count = max(1, len(self.ids) // part)
            found = self.systems[name].ask("decode", count=count, tokens=TOKENS, size=size)
            if found["tokens"] < TOKENS - 0.5:
                raise SystemExit(f"{name}: outputs have {found['tokens']:.1f} tokens, not {TOKENS}")
        return float(found["seconds"]) * len(self.ids) / count


def ratios(speeds: Speeds, ours: str, other: str) -> list[float]:
    """Return our speed divided by the other's, round by round."""
    return [own / its for own, its in zip(speeds[ours], speeds[other], strict=True)]


def fastest(speeds: Speeds, prefix: str) -> str:
    """Return the system with the highest median among those whose names start with `prefix`."""
    names = [name for name in speeds if name.startswith(prefix)]
    return max(names, key=lambda name: statistics.median(speeds[name]))


def speed_table(speeds: Speeds, unit: str) -> str:
    """Return a table of speeds, and of the ratio of our fastest to each."""
    ours, rows = fastest(speeds, "attnkit"), []
    for name, values in speeds.items():
        ratio = ("", "") if name == ours else spread(ratios(speeds, ours, name), 2)
        rows.append((name, *spread(values, 0 if min(values) > 300 else 1), *ratio))
    return table(["system", unit, "range", f"{ours} : it", "range of rounds"], rows)


def memory_table(used: dict[str, tuple[int, int]]) -> str:
    """Return a table of memory, and of the ratio of our need to that of each peer in the same precision."""
    rows = []
    for label, (before, peak) in used.items():
        ours_before, ours_peak = used[f"attnkit, {label.rpartition(', ')[2]}"]
        ratio = "" if label.startswith("attnkit") else f"{(ours_peak - ours_before) / (peak - before):.2f}"
        rows.append((label, *(f"{number / 1e6:,.0f}" for number in (before, peak, peak - before)), ratio))
    return table("system | before, MB | most, MB | difference | attnkit's : it", rows)


def goals(training: Speeds, decoding: Speeds) -> list[str]:
    """Return a table of the ratios that are aimed at, and those that were reached."""
    rows = []
    for part, speeds, prefix, goal in (
        ("training", training, "transformers", 4.0),
        ("training", training, "JoeyNMT", 3.0),
        ("decoding", decoding, "transformers", 1.5),
    ):
        if any(name.startswith(prefix) for name in speeds):
            other = fastest(speeds, prefix)
            reached = statistics.median(ratios(speeds, fastest(speeds, "attnkit"), other))
            verdict = "yes" if reached >= goal else "no"
            rows.append((f"{part} / {other}", f"{goal:.1f}", f"{reached:.2f}", verdict))
    return [table("speed of attnkit | at least | median of rounds | reached", rows)] if rows else []


def measure(options: argparse.Namespace, work: Path) -> None:
    """Create everything, take turns, write the page."""
    about = facts(options)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    torch.set_num_threads(options.threads)
    texts, ids, tokens = prepare_files(options, work)
    with started(options, work) as systems:
        training, decoding = Training(systems, tokens), Decoding(systems, texts, ids)
        measured: dict[str, Training | Decoding] = {"training": training, "decoding": decoding}
        turns = [measured[part] for part in options.parts if part in measured]
        for part in turns:
            part.warm_up()
        for number in range(options.rounds if turns else 0):
            say(f"round {number + 1} of {options.rounds}")
            for part in turns:
                part.round()
    used = measure_memory(options, work) if "memory" in options.parts else {}
    shape = json.loads((work / "shape.json").read_text())
    systems_facts = {name: process.about for name, process in systems.items()}
    known = [found["versions"] for found in systems_facts.values() if "versions" in found]
    about["versions"] = "; ".join([about["versions"], *known])
    about["threads of each system"] = ", ".join({str(found["threads"]) for found in systems_facts.values()})
    parameters = ", ".join(f"{name} {found['parameters']:,}" for name, found in systems_facts.items())
    about["model"] = (
        "{layers}+{layers} layers, width {width}, ff {ff}, {heads} heads, joint vocabulary of {vocabulary:,} pieces; "
        "parameters: ".format(**shape)
        + parameters
    )
    if turns:
        about["rounds"] = f"{options.rounds}, the systems in turn"
    if training.speeds:
        about["rounds"] += f"; updates a round, of the same batches: {training.count}"
        if "joeynmt" in options.peers:
            about["rounds"] += f"; of its own, for JoeyNMT: {training.joey_count}"
    parts = [] if set(options.parts) == set(PARTS) else options.parts
    recipe = [] if options.recipe == RECIPE else [options.recipe.stem]
    body = page(training.speeds, used, decoding.speeds, shape, len(texts))
    publish("-".join(["peers", *recipe, *parts]), "attnkit beside its peers", about, body)


def page(
    training: Speeds, used: dict[str, tuple[int, int]], decoding: Speeds, shape: Mapping[str, Any], sentences: int
) -> list[str]:
    """Return the goals, and the tables of everything that was measured."""
    body = goals(training, decoding)
    if training:
        title = f"## Training: target tokens per second, batches of {shape['batch_tokens']} tokens"
        body += [title, speed_table(training, "tokens/s"), TRAINING_NOTES.format(**shape)]
    if used:
        body += ["## Training: memory", memory_table(used), MEMORY_NOTES]
    if decoding:
        title = f"## Decoding: sentences per second, beam 5, {sentences:,} test sentences, float32"
        body += [title, speed_table(decoding, "sentences/s"), DECODING_NOTES]
    return body


def main() -> None:
    peers = [*PACKAGES]
    options = arguments(__doc__, recipe=str(RECIPE), work=Path, rounds=4, threads=cores(), parts=PARTS, peers=peers)
    options.parts, options.peers = options.parts or PARTS, options.peers or peers
    options.recipe = resolve(options.recipe).resolve()
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        measure(options, work)


if __name__ == "__main__":
    main()
