"""A corpus of millions of generated pairs: encoded ahead, planned, and trained on.

    python benchmarks/large_corpora.py [--pairs 45000000] [--threads 2] [--folder DIR]

Writes pairs of about 22 words a side, runs `attnkit data encode` on them, once more where it finds
all in the cache, plans an epoch, and times updates of one model on this corpus and on one of 45,000
pairs in turn.  Memory is that of all processes of a command together, read five times a
second: what is their own (anonymous and shared memory) and, beside it, with their share of mapped
files (PSS).  Needs 360 bytes of disk a pair in DIR (default: a temporary folder), freed at the end.
Prints a Markdown page; results/large-corpora.md is a recorded one.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np

WORDS, DISTINCT = 60_000, 450_000
"""Of the vocabulary, and pairs of which each line begins with its number."""
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


def lines() -> Iterator[tuple[str, str]]:
    """Different pairs of a Zipf-like vocabulary; lengths are log-normal."""
    generator = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwyp"))
    words = ["".join(generator.choice(letters, size)) for size in generator.integers(2, 11, WORDS)]
    source = np.clip(generator.lognormal(2.9, 0.6, DISTINCT), 2, 80).astype(int)
    target = np.clip(source * generator.normal(1.0, 0.15, DISTINCT), 2, 90).astype(int)
    for sizes in zip(source.tolist(), target.tolist(), strict=True):
        ranks = WORDS ** generator.random(sum(sizes)) - 1
        drawn = [words[rank] for rank in ranks.astype(int).tolist()]
        yield " ".join(drawn[: sizes[0]]), " ".join(drawn[sizes[0] :])


def generate(folder: Path, pairs: int, made: list[tuple[str, str]]) -> Path:
    """Files of so many pairs, and the recipe that reads them."""
    folder.mkdir(parents=True)
    for split, number in (("train", pairs), ("valid", 1000)):
        for side, language in enumerate(("en", "de")):
            with open(folder / f"{split}.{language}", "w", encoding="ascii") as file:
                for start in range(0, number, len(made)):
                    part = made[: number - start]
                    file.writelines(f"{start + i} {pair[side]}\n" for i, pair in enumerate(part))
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(folder=folder))
    return recipe


@dataclass
class Memory:
    """The most memory, in bytes, that a process and those it started had at a time."""

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
    """A process and all that descend from it."""
    try:
        threads = Path(f"/proc/{process}/task").iterdir()
        children = [c for t in threads for c in (t / "children").read_text().split()]
    except OSError:
        return [process]
    return [process, *(other for child in children for other in family(int(child)))]


def read_memory(process: int) -> tuple[int, int]:
    """What is a process's own, and its PSS."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: line.split()[1] for line in text.splitlines()[1:]}
    own = int(sizes["Pss_Anon"]) + int(sizes["Pss_Shmem"])
    return own * 1024, int(sizes["Pss"]) * 1024


@dataclass
class Done:
    """A command: its last line, seconds, those of processors, and when each stage reported last."""

    output: str
    seconds: float
    used: float
    memory: Memory
    stages: dict[str, float]


def run(words: list[str], environment: dict[str, str], *, watched: bool = True) -> Done:
    """Run a command; to watch the memory of one that has mapped much slows it down."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environment
    )
    memory, stages, lines = Memory(process.pid), dict[str, float](), list[str]()
    watcher = threading.Thread(target=memory.watch)
    if watched:
        watcher.start()
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        stages[line.split(":")[0]] = time.perf_counter() - start
    code = process.wait()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    memory.done.set()
    if watched:
        watcher.join()
    if code:
        raise SystemExit("".join(lines))
    return Done(lines[-1], seconds, used, memory, stages)


def plan_epoch(recipe: str) -> dict[str, float]:
    """Open the encoded corpus, and plan its first epoch as training does."""
    from attnkit.data.preparation import prepare
    from attnkit.recipe import load
    from attnkit.train.batch_stream import BatchStream

    start = time.perf_counter()
    prepared = prepare(load(recipe).variants["base"])
    opened = time.perf_counter()
    stream = BatchStream(lambda _: prepared.train, 4096, 1)
    return {
        "open": opened - start,
        "plan": time.perf_counter() - opened,
        "pairs": len(prepared.train),
        "batches": len(stream.batches),
    }


def compare(recipes: list[str]) -> list[dict[str, float]]:
    """Seconds of a token in updates on each corpus in turn; each has a model of its own."""
    from attnkit.bench.training_speed import training_on
    from attnkit.data.preparation import prepare
    from attnkit.recipe import load

    found = []
    loaded = [load(name).variants["base"] for name in recipes]
    with ExitStack() as stack:
        trainings = [
            (name, stack.enter_context(training_on(recipe, prepare(recipe), "fp32", "cpu")))
            for name, recipe in zip(("small", "large"), loaded, strict=True)
        ]
        for number in range(-2, ROUNDS):
            row = {}
            for name, training in trainings[:: 1 if number % 2 else -1]:
                tokens = training.progress.tokens
                start = time.perf_counter(), time.process_time()
                for _ in range(UPDATES):
                    training.advance()
                tokens = training.progress.tokens - tokens
                row[name] = (time.perf_counter() - start[0]) / tokens
                row[f"{name} cpu"] = (time.process_time() - start[1]) / tokens
            if number >= 0:
                found.append(row)
    return found


def report(pairs: int, threads: int, folder: Path) -> Iterator[str]:
    """Lines of the page."""
    yield (
        f"Python {platform.python_version()}, numpy {version('numpy')}, "
        f"sentencepiece {version('sentencepiece')}, torch {version('torch')}"
    )
    environment = {"ATTNKIT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": str(threads)}
    made = list(lines())
    small, large = (generate(folder / name, number, made) for name, number in (("small", SMALL), ("large", pairs)))
    size = sum(file.stat().st_size for file in large.parent.iterdir())
    del made
    command = [sys.executable, "-m", "attnkit", "data", "encode"]
    run([*command, str(small)], environment)
    first = run([*command, str(large)], environment)
    again = run([*command, str(large)], environment)
    ids = sum(file.stat().st_size for file in (folder / "cache" / "encoded").glob("*/*"))
    me = [sys.executable, __file__, "--phase"]
    planned = run([*me, "plan", str(large)], environment)
    facts = json.loads(planned.output)
    learned = first.stages.get("preparing tokenizer", 0.0)
    encoding = first.stages.get("preparing train", first.seconds) - learned
    yield ""
    yield f"{pairs:,} pairs, {size / 1e9:.1f} GB of text, {ids / 1e9:.1f} GB of ids"
    yield ""
    yield "| | seconds | processor s | pairs/s | own memory MB | PSS MB |"
    yield "|:--|---:|---:|---:|---:|---:|"
    for what, done, seconds in (
        (f"`data encode`, whole, {threads} processes", first, first.seconds),
        ("of that: training the tokenizer and encoding", None, encoding),
        ("`data encode` again: all bytes checked", again, again.seconds),
        ("opened, and the first epoch planned", planned, planned.seconds),
        (f"of that: the plan, {facts['batches']:,} batches", None, facts["plan"]),
    ):
        used = f"{done.used:.1f}" if done else ""
        memory = f"{done.memory.own / 1e6:.0f} | {done.memory.pss / 1e6:.0f}" if done else "|"
        yield f"| {what} | {seconds:.1f} | {used} | {pairs / seconds:,.0f} | {memory} |"
    command = [*me, "train", str(small), str(large)]
    trained = run(command, environment | {"OMP_NUM_THREADS": "1"}, watched=False)
    rows = json.loads(trained.output)
    yield ""
    for what, suffix in (("wall", ""), ("processor", " cpu")):
        ratios = [row[f"small{suffix}"] / row[f"large{suffix}"] for row in rows]
        yield (
            f"Training, tokens/s with {pairs:,} pairs over those with {SMALL:,} by {what} time: "
            f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {ROUNDS} rounds of "
            f"{UPDATES} updates)."
        )


def main() -> None:
    """Read the arguments, then measure one phase or print the whole page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=45_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--phase", choices=("plan", "train"), help=argparse.SUPPRESS)
    parser.add_argument("recipes", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        recipes = options.recipes
        found = plan_epoch(recipes[0]) if options.phase == "plan" else compare(recipes)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        for line in report(options.pairs, options.threads, Path(temporary)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
