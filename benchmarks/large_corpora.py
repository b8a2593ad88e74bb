"""A corpus of millions of generated pairs: encoding, planning of an epoch, and training.

    python benchmarks/large_corpora.py [--pairs 45000000] [--folder DIR]

Writes pairs of about 22 words a side, runs `attnkit data encode` on them, and once more with everything in the cache,
plans an epoch, and times updates of one model on this corpus and on one of 45,000 pairs in turn. Memory is that of all
processes of a command together, read five times a second: their own (anonymous and shared memory), and PSS, which
includes their share of mapped files. Needs 360 bytes of disk per pair in DIR (default: a temporary folder), freed at
the end. Writes results/large-corpora.md.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from common import arguments, attnkit, children_seconds, cores, environment, facts, publish, table

from attnkit.bench.training_speed import training_on
from attnkit.data.preparation import prepare
from attnkit.recipe import load
from attnkit.train.batch_stream import BatchStream

WORDS, DISTINCT = 60_000, 450_000
"""Size of the vocabulary, and number of different pairs; each line begins with its number."""
SMALL = 45_000
ROUNDS, UPDATES = 30, 4
RECIPE = """
task: translation
data:
  train: [{folder}/train.en, {folder}/train.de]
  valid: [{folder}/valid.en, {folder}/valid.de]
tokenizer: {{type: unigram, size: 8000}}
model: {{width: 64, layers: 2, heads: 4, ff: 128}}
train: {{batch_tokens: 4096, steps: 100, precision: fp32}}
"""


def draw_pairs() -> Iterator[tuple[str, str]]:
    """Yield different pairs from a Zipf-like vocabulary; lengths are log-normal."""
    generator = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwyp"))
    words = ["".join(generator.choice(letters, size)) for size in generator.integers(2, 11, WORDS)]
    source = np.clip(generator.lognormal(2.9, 0.6, DISTINCT), 2, 80).astype(int)
    target = np.clip(source * generator.normal(1.0, 0.15, DISTINCT), 2, 90).astype(int)
    for sizes in zip(source.tolist(), target.tolist(), strict=True):
        ranks = WORDS ** generator.random(sum(sizes)) - 1
        drawn = [words[rank] for rank in ranks.astype(int).tolist()]
        yield " ".join(drawn[: sizes[0]]), " ".join(drawn[sizes[0] :])


def write_corpus(folder: Path, size: int, pairs: list[tuple[str, str]]) -> Path:
    """Write `size` pairs, and return the recipe that reads them."""
    folder.mkdir(parents=True)
    for split, number in (("train", size), ("valid", 1000)):
        for side, language in enumerate(("en", "de")):
            with open(folder / f"{split}.{language}", "w", encoding="ascii") as file:
                for start in range(0, number, len(pairs)):
                    part = pairs[: number - start]
                    file.writelines(f"{start + i} {pair[side]}\n" for i, pair in enumerate(part))
    (folder / "recipe.yaml").write_text(RECIPE.format(folder=folder))
    return folder / "recipe.yaml"


@dataclass
class Memory:
    """The maximum memory, in bytes, of a process and its descendants."""

    process: int
    own: int = 0
    pss: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        while not self.done.wait(0.2):
            sizes = [read_memory(process) for process in family(self.process)]
            self.own = max(self.own, sum(own for own, _ in sizes))
            self.pss = max(self.pss, sum(pss for _, pss in sizes))


def family(process: int) -> list[int]:
    """Return a process and its descendants."""
    try:
        threads = Path(f"/proc/{process}/task").iterdir()
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return [process]
    return [process, *(other for child in children for other in family(int(child)))]


def read_memory(process: int) -> tuple[int, int]:
    """Return the own memory of a process, and its PSS."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in text.splitlines()[1:]}
    return sizes["Pss_Anon"] + sizes["Pss_Shmem"], sizes["Pss"]


@dataclass
class Done:
    """A command that has ended: its last line, times, memory, and when each stage reported last."""

    output: str
    seconds: float
    used: float
    memory: Memory
    stages: dict[str, float]


def run(words: list[str], env: dict[str, str], *, watched: bool = True) -> Done:
    """Run a command; watching its memory slows down a command that has mapped much."""
    start, before = time.perf_counter(), children_seconds()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    memory, stages, lines = Memory(process.pid), dict[str, float](), list[str]()
    watcher = threading.Thread(target=memory.watch)
    if watched:
        watcher.start()
    for line in process.stdout or ():
        lines.append(line)
        stages[line.split(":")[0]] = time.perf_counter() - start
    code = process.wait()
    seconds, used = time.perf_counter() - start, children_seconds() - before
    memory.done.set()
    if watched:
        watcher.join()
    if code:
        raise SystemExit("".join(lines))
    return Done(lines[-1], seconds, used, memory, stages)


def plan_epoch(recipe: str) -> dict[str, float]:
    """Open the encoded corpus, and plan its first epoch as training does."""
    prepared = prepare(load(recipe).variants["base"])
    start = time.perf_counter()
    stream = BatchStream(lambda _: prepared.train, 4096, 1)
    return {"plan": time.perf_counter() - start, "batches": len(stream.batches)}


def compare_training(*recipes: str) -> list[dict[str, float]]:
    """Return the seconds per token of updates on each corpus in turn; each has a model of its own."""
    found = []
    with ExitStack() as stack:
        trainings = []
        for name, recipe in zip(("small", "large"), (load(name).variants["base"] for name in recipes), strict=True):
            trainings.append((name, stack.enter_context(training_on(recipe, prepare(recipe), "fp32", "cpu"))))
        for number in range(-2, ROUNDS):
            row = {}
            for name, training in trainings[:: 1 if number % 2 else -1]:
                tokens, start = training.progress.tokens, (time.perf_counter(), time.process_time())
                for _ in range(UPDATES):
                    training.advance()
                tokens = training.progress.tokens - tokens
                row[f"{name} wall"] = (time.perf_counter() - start[0]) / tokens
                row[f"{name} processor"] = (time.process_time() - start[1]) / tokens
            if number >= 0:
                found.append(row)
    return found


def measure(pairs: int, folder: Path) -> list[str]:
    """Return the body of the page."""
    env = environment(cores(), ATTNKIT_CACHE=str(folder / "cache"))
    drawn = list(draw_pairs())
    small, large = (write_corpus(folder / str(size), size, drawn) for size in (SMALL, pairs))
    del drawn
    run(attnkit("data", "encode", small), env)
    first, again = (run(attnkit("data", "encode", large), env) for _ in range(2))
    files = large.parent.iterdir(), (folder / "cache/encoded").glob("*/*")
    text, ids = (sum(file.stat().st_size for file in some) for some in files)
    program = [sys.executable, __file__]
    planned = run([*program, "--plan", str(large)], env)
    plan = json.loads(planned.output)
    learned = first.stages.get("preparing tokenizer", 0.0)
    encoding = first.stages.get("preparing train", first.seconds) - learned
    rows = []
    for title, done, seconds in (
        (f"`data encode`, whole, {cores()} processes", first, first.seconds),
        ("of that: training the tokenizer and encoding", None, encoding),
        ("`data encode` again: all bytes checked", again, again.seconds),
        ("opened, and the first epoch planned", planned, planned.seconds),
        (f"of that: the plan, {plan['batches']:,} batches", None, plan["plan"]),
    ):
        cells = ["", "", ""]
        if done:
            cells = [f"{done.used:.1f}", f"{done.memory.own / 1e6:.0f}", f"{done.memory.pss / 1e6:.0f}"]
        rows.append([title, f"{seconds:.1f}", cells[0], f"{pairs / seconds:,.0f}", *cells[1:]])
    body = [f"{pairs:,} pairs, {text / 1e9:.1f} GB of text, {ids / 1e9:.1f} GB of ids"]
    body += [table(" | seconds | processor s | pairs/s | own memory MB | PSS MB", rows)]
    trained = run([*program, "--train", str(small), str(large)], env | {"OMP_NUM_THREADS": "1"}, watched=False)
    for kind in ("wall", "processor"):
        ratios = [row[f"small {kind}"] / row[f"large {kind}"] for row in json.loads(trained.output)]
        body.append(
            f"Training, tokens/s with {pairs:,} pairs over those with {SMALL:,} by {kind} time: {median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}, {ROUNDS} rounds of {UPDATES} updates)."
        )
    return body


def main() -> None:
    if sys.argv[1:2] == ["--plan"]:
        print(json.dumps(plan_epoch(sys.argv[2])))
    elif sys.argv[1:2] == ["--train"]:
        print(json.dumps(compare_training(*sys.argv[2:])))
    else:
        options = arguments(__doc__, pairs=45_000_000, folder=Path)
        about = facts(options, "numpy", "sentencepiece")
        with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
            body = measure(options.pairs, Path(temporary))
        publish("large-corpora", f"A corpus of {options.pairs:,} generated pairs", about, body)


if __name__ == "__main__":
    main()
