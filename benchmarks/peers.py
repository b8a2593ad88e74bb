"""Training and decoding speed beside Hugging Face transformers (Marian) and JoeyNMT.

    python benchmarks/peers.py --data-dir DIR [--work DIR] [--rounds 4] [--seconds 6]

Each peer gets a virtual environment of its own in --work, made from the package index at the first
run, with this Python's build of torch.  Then every system is one process; the processes are asked
in turn, round after round, so that a change of the machine's speed meets all of them.  Memory is
measured in processes of their own.  Writes results/peers.md; about twelve minutes once the
environments are there.  --parts measures some of it alone, --recipe the shape and the batches of
another recipe; their names are then added to that of the result file.

A smoke test: --rounds 1 --seconds 0.1 --sentences 20.
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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import ROOT, command, cores, environment, load_before, publish, python_of, say, spread, table
from common import versions as installed

from attnkit.device import CACHES
from attnkit.errors import MissingInputError
from attnkit.recipe.find import resolve

SYSTEMS = Path(__file__).resolve().parent / "systems"
sys.path.insert(0, str(SYSTEMS))

PACKAGES: Mapping[str, Sequence[Sequence[str]]] = {
    "transformers": (("torch", "numpy", "sentencepiece", "transformers==5.23.0"),),
    "joeynmt": (
        ("torch", "numpy<2"),
        # its pin of protobuf cannot be met any more
        ("--no-deps", "joeynmt==2.3.0"),
        (
            "numpy<2",
            "sacrebleu",
            "sentencepiece",
            "pyyaml",
            "tensorboard",
            "matplotlib",
            "seaborn",
            "pandas",
            "subword-nmt",
            "sacremoses",
            "packaging",
            "datasets",
            "importlib-metadata",
        ),
    ),
}
"""What each peer's environment is made of, one pip command after the other."""
SIZES = (16, 32, 64, 128)
"""Sentences a batch that decoding is tried with; the fastest is measured."""
TOKENS = 11
"""Length of every decoded output."""
POOL = 200
"""Batches that the peer trains on before it starts over."""
WARM = 2
"""Updates of each system before the first measured one."""

UPDATES = 10
"""Updates whose peak memory is measured."""
PARTS = ("training", "memory", "decoding")
"""What can be measured; a subset writes a file of its own."""
PRECISIONS = ("fp32", "bf16")
LABELS = {"attnkit": "attnkit", "transformers": "transformers Marian", "joeynmt": "JoeyNMT"}
MODULES = {"attnkit": "ours", "transformers": "marian", "joeynmt": "joey"}

PEERS = Path(__file__).resolve().with_name("peers.yaml")
"""The recipe whose shape is measured by default."""

Speeds = dict[str, list[float]]
"""System -> one speed a round."""


class Process:
    """A system that waits for requests; see systems/serve.py."""

    def __init__(self, name: str, words: Sequence[str | Path], log: Path, variables: dict[str, str]) -> None:
        self.name, self.log = name, log
        with log.open("w") as errors:
            self.child = subprocess.Popen(
                list(map(str, words)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                stderr=errors,
                env=variables,
                cwd=ROOT,
            )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one request.

        Raises:
            SystemExit: the process died; the end of what it printed is shown.
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
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        """End the process."""
        self.child.kill()
        self.child.communicate()


def refuse_unlike(recipe: Any, peers: Sequence[str]) -> None:
    """Raise SystemExit where the peers cannot be given the shape of the recipe."""
    model = recipe.model
    mechanisms = {getattr(model.attention, place).name for place in model.places}
    comparable = {
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
        comparable["relu (JoeyNMT)"] = model.activation == "relu"
        comparable["no model.activation_dropout (JoeyNMT)"] = model.activation_dropout is None
    if missing := [what for what, there in comparable.items() if not there]:
        raise SystemExit(f"the peers need: {', '.join(missing)}")


def prepare_files(options: argparse.Namespace, work: Path) -> tuple[list[str], list[list[int]], np.ndarray]:
    """Write what the peers read; test sentences, their ids, and target tokens of each batch."""
    import ours

    recipe, prepared = ours.data(options.recipe, options.data_dir, work / "cache")
    refuse_unlike(recipe, options.peers)
    pool = ours.batches(recipe, prepared, work / "runs", POOL)
    arrays = {
        f"{name}{number}": getattr(batch, name).numpy().astype(np.int32)
        for number, batch in enumerate(pool)
        for name in ("source", "input", "output")
    }
    np.savez(work / "batches.npz", **arrays)
    model, train = recipe.model, recipe.train
    inside = model.activation_dropout
    vocabulary = prepared.tokenizer.source
    shape = {
        "width": model.width,
        "ff": model.ff,
        "heads": model.heads,
        "dropout": model.dropout,
        "activation": model.activation,
        "activation_dropout": model.dropout if inside is None else inside,
        "layers": model.layers.encoder,
        "vocabulary": len(vocabulary),
        "max_length": recipe.data.max_length,
        "batch_tokens": train.batch_tokens,
        "label_smoothing": train.label_smoothing,
        "clip": train.clip,
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
    texts = [row.source for row in prepared.corpus.rows("test")]
    ids = [[*ids, 3] for ids in vocabulary.encode(texts)]
    return texts, ids, np.array([batch.tokens for batch in pool])


def start(name: str, options: argparse.Namespace, work: Path) -> Process:
    """A system as a process."""
    python = sys.executable if name == "attnkit" else python_of(name, PACKAGES[name], work)
    words = [python, SYSTEMS / f"{MODULES[name]}.py", "--work", work]
    if name == "attnkit":
        words += ["--recipe", options.recipe]
        words += ["--data-dir", options.data_dir] if options.data_dir else []
    own = CACHES if name == "attnkit" else {}  # as its commands set them
    variables = environment(options.threads, TQDM_DISABLE="1", **own)
    return Process(name, words, work / f"{name}.log", variables)


@contextmanager
def started(options: argparse.Namespace, work: Path) -> Iterator[dict[str, Process]]:
    """All systems as processes."""
    with ExitStack() as stack:
        found = {}
        for name in ("attnkit", *options.peers):
            found[name] = start(name, options, work)
            stack.callback(found[name].close)
        for name, process in found.items():
            say(f"{name}: starting")
            process.ask("about")
        yield found


def memory(options: argparse.Namespace, work: Path) -> dict[str, tuple[int, int]]:
    """Bytes before the first update, and the most in `UPDATES` of them, of each system."""
    found = {}
    for name in ("attnkit", *options.peers):
        for precision in ("fp32",) if name == "joeynmt" else PRECISIONS:
            say(f"{name}, {precision}: memory")
            process = start(name, options, work)
            process.ask("about")
            before = process.ask("memory")["now"]
            which = {} if name == "joeynmt" else {"precision": precision, "start": 0}
            process.ask("train", count=UPDATES, **which)
            found[f"{LABELS[name]}, {precision}"] = before, process.ask("memory")["peak"]
            process.close()
    return found


class Training:
    """Training speeds, in target tokens a second, round by round."""

    def __init__(self, systems: dict[str, Process], tokens: np.ndarray, seconds: float) -> None:
        self.systems, self.tokens, self.seconds = systems, tokens, seconds
        self.speeds: Speeds = defaultdict(list)
        self.lanes = [
            (f"{LABELS[name]}, {precision}", name, precision)
            for name in ("attnkit", "transformers")
            for precision in PRECISIONS
            if name in systems
        ]
        self.position = 0
        self.count = self.joey_count = WARM

    def warm_up(self) -> None:
        """A few updates of each, which also say how many fill a round."""
        longest = 0.0
        for _, name, precision in self.lanes:
            longest = max(longest, self._seconds(name, precision, WARM) / WARM)
        self.position, self.count = WARM, max(1, round(self.seconds / longest))
        if "joeynmt" in self.systems:
            speed = self.systems["joeynmt"].ask("train", count=WARM)["speed"]
            per_update = self.tokens.mean() / speed
            self.joey_count = max(1, round(self.seconds / per_update))

    def round(self) -> None:
        """The same batches by attnkit and transformers, then as long by JoeyNMT."""
        rows = np.arange(self.position, self.position + self.count) % len(self.tokens)
        tokens = float(self.tokens[rows].sum())
        for label, name, precision in self.lanes:
            self.speeds[label].append(tokens / self._seconds(name, precision, self.count))
        self.position += self.count
        if "joeynmt" in self.systems:
            found = self.systems["joeynmt"].ask("train", count=self.joey_count)
            self.speeds["JoeyNMT, fp32"].append(found["speed"])

    def _seconds(self, name: str, precision: str, count: int) -> float:
        found = self.systems[name].ask("train", precision=precision, start=self.position, count=count)
        return float(found["seconds"])


class Decoding:
    """Decoding speeds, in sentences a second, round by round."""

    def __init__(self, systems: dict[str, Process], texts: list[str], ids: list[list[int]]) -> None:
        self.systems, self.texts, self.ids = systems, texts, ids
        self.speeds: Speeds = defaultdict(list)
        self.size: dict[str, int] = {}

    def warm_up(self) -> None:
        """Find the batch size that suits each peer, on a quarter of the sentences."""
        self.systems["attnkit"].ask("decode", texts=self.texts[::8], tokens=TOKENS)
        for name in self.systems:
            if name == "attnkit":
                continue
            taken = {size: self._seconds(name, size, 4) for size in SIZES}
            self.size[name] = min(taken, key=lambda size: taken[size])

    def round(self) -> None:
        """All sentences by each."""
        found = self.systems["attnkit"].ask("decode", texts=self.texts, tokens=TOKENS)
        self.speeds["attnkit"].append(len(self.texts) / found["seconds"])
        for name, size in self.size.items():
            seconds = self._seconds(name, size, 1)
            self.speeds[f"{LABELS[name]}, {size} a batch"].append(len(self.texts) / seconds)

    def _seconds(self, name: str, size: int, part: int) -> float:
        """Seconds for every `part`-th sentence, scaled up to all of them."""
        if name == "transformers":
            some = self.ids[::part]
            found = self.systems[name].ask("decode", sources=some, tokens=TOKENS, size=size)
        else:
            some = self.ids[: max(1, len(self.ids) // part)]
            found = self.systems[name].ask("decode", count=len(some), tokens=TOKENS, size=size)
            if found["tokens"] < TOKENS - 0.5:
                raise SystemExit(f"{name}: outputs have {found['tokens']:.1f} tokens, not {TOKENS}")
        return float(found["seconds"]) * len(self.ids) / len(some)


def ratios(speeds: Speeds, ours: str, other: str) -> list[float]:
    """Ours by the other's, round by round."""
    return [one / two for one, two in zip(speeds[ours], speeds[other], strict=True)]


def fastest(speeds: Speeds, prefix: str) -> str:
    """The system whose name starts so with the highest median."""
    names = [name for name in speeds if name.startswith(prefix)]
    return max(names, key=lambda name: statistics.median(speeds[name]))


def report(speeds: Speeds, unit: str) -> list[str]:
    """A table of speeds and of our best lane's ratio to each."""
    ours = fastest(speeds, "attnkit")
    rows = []
    for name, values in speeds.items():
        ratio = ("", "") if name == ours else spread(ratios(speeds, ours, name), 2)
        rows.append((name, *spread(values, 0 if min(values) > 300 else 1), *ratio))
    return table(["system", unit, "range", f"{ours} : it", "range of rounds"], rows)


def needs(used: dict[str, tuple[int, int]]) -> list[str]:
    """A table of memory, and how much of each one's need ours is in the same precision."""
    rows = []
    for label, (before, peak) in used.items():
        ours_before, ours_peak = used[f"attnkit, {label.rpartition(', ')[2]}"]
        ratio = (ours_peak - ours_before) / (peak - before)
        megabytes = (f"{number / 1e6:,.0f}" for number in (before, peak, peak - before))
        rows.append((label, *megabytes, "" if label.startswith("attnkit") else f"{ratio:.2f}"))
    header = ["system", "before, MB", "most, MB", "difference", "attnkit's : it"]
    return table(header, rows)


def targets(training: Speeds, decoding: Speeds) -> list[str]:
    """What was aimed at, and what was reached."""
    wanted = (
        ("training", training, "transformers", 4.0),
        ("training", training, "JoeyNMT", 3.0),
        ("decoding", decoding, "transformers", 1.5),
    )
    rows = []
    for what, speeds, prefix, goal in wanted:
        if any(name.startswith(prefix) for name in speeds):
            ours, other = fastest(speeds, "attnkit"), fastest(speeds, prefix)
            reached = statistics.median(ratios(speeds, ours, other))
            verdict = "yes" if reached >= goal else "no"
            rows.append((f"{what} / {other}", f"{goal:.1f}", f"{reached:.2f}", verdict))
    header = ["speed of attnkit", "at least", "median of rounds", "reached"]
    return table(header, rows) if rows else []


def measure(options: argparse.Namespace, work: Path) -> None:
    """Make everything, take turns, write the report."""
    load = load_before()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    torch.set_num_threads(options.threads)
    texts, ids, tokens = prepare_files(options, work)
    texts, ids = texts[: options.sentences], ids[: options.sentences]
    with started(options, work) as systems:
        about = {name: process.ask("about") for name, process in systems.items()}
        training = Training(systems, tokens, options.seconds)
        decoding = Decoding(systems, texts, ids)
        measured: dict[str, Training | Decoding] = {"training": training, "decoding": decoding}
        turns = [measured[part] for part in options.parts if part in measured]
        for part in turns:
            say("warming up")
            part.warm_up()
        for number in range(options.rounds if turns else 0):
            say(f"round {number + 1} of {options.rounds}")
            for part in turns:
                part.round()
    used = memory(options, work) if "memory" in options.parts else {}
    shape = json.loads((work / "shape.json").read_text())
    versions = [found["versions"] for found in about.values() if "versions" in found]
    parameters = (f"{name} {found['parameters']:,}" for name, found in about.items())
    facts = {
        "command": f"`{command(options, work='WORK', data_dir='DATA')}`",
        "versions": "; ".join([installed("attnkit", "torch"), *versions]),
        "threads of each system": ", ".join(sorted({str(found["threads"]) for found in about.values()})),
        "load of the machine": load,
        "model": "{layers}+{layers} layers, width {width}, ff {ff}, {heads} heads, joint "
        "vocabulary of {vocabulary:,} pieces; parameters: ".format(**shape)
        + ", ".join(parameters),
    }
    if turns:
        facts["rounds"] = f"{options.rounds}, the systems in turn"
    if training.speeds:
        facts["rounds"] += f"; updates a round, of the same batches: {training.count}"
        if "joeynmt" in options.peers:
            facts["rounds"] += f"; of its own, for JoeyNMT: {training.joey_count}"
    some = [] if set(options.parts) == set(PARTS) else options.parts
    other = [] if options.recipe == PEERS else [options.recipe.stem]
    body = sections(training.speeds, used, decoding.speeds, shape, len(texts))
    publish("-".join(["peers", *other, *some]), "attnkit beside its peers", facts, body)


def sections(
    training: Speeds, used: dict[str, tuple[int, int]], decoding: Speeds, shape: Mapping[str, Any], sentences: int
) -> list[str]:
    """What was aimed at, and the tables of all that was measured."""
    aims = targets(training, decoding)
    blocks = [aims] if aims else []
    if training:
        title = "## Training: target tokens per second, batches of {batch_tokens} tokens"
        speeds = report(training, "tokens/s")
        blocks += [[title.format(**shape)], speeds, [TRAINING_NOTES.format(**shape)]]
    if used:
        blocks += [["## Training: memory"], needs(used), [MEMORY_NOTES]]
    if decoding:
        title = f"## Decoding: sentences per second, beam 5, {sentences:,} test sentences, float32"
        blocks += [[title], report(decoding, "sentences/s"), [DECODING_NOTES]]
    return [line for block in blocks for line in (*block, "")][:-1]


TRAINING_NOTES = """\
Training: random weights, AdamW, label smoothing {label_smoothing}, clipping at {clip}, dropout
{dropout}. attnkit is driven through `attnkit.train.fit.fit`, the loop of `attnkit train`, logging
every update. transformers gets attnkit's batches as ready tensors, the fused attention kernel,
fused AdamW and one cross entropy over all positions; bf16 is autocast. JoeyNMT forms its own
batches of as many tokens (it has no buckets), and its speed is what its log says."""
MEMORY_NOTES = f"""\
Memory: of a process of its own, before the first of {UPDATES} updates and at most in them; JoeyNMT
forms its own batches, of as many tokens. The difference has gradients, moments of the optimiser
and activations; in attnkit's the weights of the trained model too. Ratios are of the differences,
in the same precision. attnkit runs with the settings of its commands: freed memory is kept, and
few compiled products."""
DECODING_NOTES = f"""\
Decoding: the weights are random, so every output is made {TOKENS} tokens long (the end
token is forbidden; JoeyNMT is only limited, and its mean length is checked). attnkit goes
from text to text with the batches of `attnkit generate`; the peers use the fastest of
{", ".join(map(str, SIZES))} sentences a batch: transformers from ids to ids, its sentences
sorted by length, JoeyNMT by its `predict`, timed by its log."""


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default=str(PEERS), help="name or path; its first variant")
    parser.add_argument("--data-dir", type=Path, help="folder of corpora; default $ATTNKIT_DATA")
    parser.add_argument("--work", type=Path, help="environments and files; default: temporary")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0, help="of training, each round")
    parser.add_argument("--sentences", type=int, default=1000, help="to decode, each round")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--peers", nargs="*", choices=list(PACKAGES), default=list(PACKAGES))
    options = parser.parse_args()
    try:
        options.recipe = resolve(options.recipe).resolve()
    except MissingInputError as error:
        parser.error(str(error))
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.data_dir:
        options.data_dir = options.data_dir.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        measure(options, work)


if __name__ == "__main__":
    main()
