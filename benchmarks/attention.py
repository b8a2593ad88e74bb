"""Time and memory of the attention mechanisms: growth, long and short texts, peers, decoding.

    python benchmarks/attention.py [--part exponents long short decode gpu peers] [--work DIR]

Every part writes its own section of results/attention.md and keeps the others.  Mixing is measured
by `attnkit.bench`, the library of `attnkit bench attention`.  The peers performer-pytorch,
linear-attention-transformer, nystrom-attention and local-attention run in this process where they
are installed (`pip install '.[test]'`); otherwise in an environment of its own in --work.

A smoke test: --shrink 64.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import (
    ROOT,
    command,
    cores,
    environment,
    load_before,
    publish_part,
    python_of,
    say,
    spread,
    table,
    versions,
)
from mixing_peers import CAUSAL, FULL, LOCAL, NOTES, PEERS, PERFORMER, Contest, contests, known

from attnkit import mechanisms, models
from attnkit.bench.plan import BASELINE, PASSES, Candidate, Workload, measurable, sweeps
from attnkit.bench.schedule import Point, measure
from attnkit.memory import keep_freed_memory
from attnkit.recipe.schema import AttentionConfig, Layers, ModelConfig, Roles
from attnkit.show.bench_tables import exponents
from attnkit.show.quantities import amount, duration

TITLE = "Attention mechanisms: time and memory"
BOTH = PASSES[1]
NYSTROM = "nystrom:landmarks=64"
LINEAR = {
    CAUSAL: ("linear", PERFORMER, LOCAL, "gated-delta"),
    FULL: ("linear", "efficient", PERFORMER, NYSTROM, LOCAL, "linformer"),
}
"""Mechanisms whose exponents must be close to 1."""
SPARSE = ("sparse:rate=8", "atrous:rate=8")
MOST_TIME, MOST_MEMORY, RATE = 1.15, 1.1, 8
LONG = {CAUSAL: {"linear": 12, LOCAL: 6, PERFORMER: 5}, FULL: {PERFORMER: 8, NYSTROM: 8, "efficient": 25}}
"""Times faster than the fused kernel at length 8192, forward and backward."""
PAIRS = [
    "A pattern that spends as much time on a pair as the dense kernel is as many times faster as",
    "it has fewer pairs; it is more where a pair costs the dense kernel more.",
]
SLOWER = (
    "additive",
    "block-topk",
    "decay",
    "differential",
    "entmax",
    "forgetting",
    "gated-delta",
    "nystrom",
    "performer",
    "stick-breaking",
)
SHORT = {"synthesizer-random": 1.0, **dict.fromkeys(SLOWER, 3.0)}
SHORT_REST, SHORT_LENGTHS = 1.6, (32, 128)
"""Times scaled-dot's time in a whole layer, and at which lengths."""
DECODED, STEADY = 2000, 1.1

Rows = list[Sequence[object]]


class Options(NamedTuple):
    """What the command line sets."""

    threads: int
    repeats: int
    shrink: int
    batch: int = 128

    def length(self, length: int) -> int:
        """A length, shorter in a smoke test."""
        return max(32, length // self.shrink)

    def setting(self, sight: str) -> Workload:
        """What `measure` needs to know."""
        return Workload(causal=sight == CAUSAL, repeats=self.repeats, threads=self.threads, budget=20.0)


def points(labels: Sequence[str], sight: str, lengths: Sequence[int], options: Options, **changes: Any) -> list[Point]:
    """Measured beside the baseline."""
    setting = options.setting(sight)._replace(**changes)
    return list(measure(sweeps(known(labels), lengths), setting, say))


def verdict(reached: bool) -> str:
    """For the last column."""
    return "yes" if reached else "no"


def part_exponents(options: Options) -> list[str]:
    """How time and memory grow, and sparse patterns beside the dense kernel."""
    lengths = [options.length(length) for length in (2048, 4096, 8192, 16384)]
    body: list[str] = []
    for sight in (CAUSAL, FULL):
        words = [*LINEAR[sight], *SPARSE]
        found = points(words, sight, lengths, options._replace(repeats=min(3, options.repeats)))
        rows: Rows = []
        for label, fits in exponents(found).items():
            seconds, memory = fits[BOTH], fits["memory"]
            if seconds is None or memory is None:
                rows.append((label, "-", "-", "-", "-"))
                continue
            must = label in LINEAR[sight]
            reached = seconds.exponent <= MOST_TIME and memory.exponent <= MOST_MEMORY
            longest = next(p for p in reversed(found) if p.label == label).passes[BOTH]
            rows.append(
                (
                    label,
                    f"{seconds.exponent:.2f}",
                    f"{memory.exponent:.2f}",
                    duration(longest.seconds or 0),
                    amount(longest.bytes or 0),
                    verdict(reached) if must else "",
                )
            )
        head = [
            "mechanism",
            "time exponent",
            "memory exponent",
            f"time at {lengths[-1]:,}",
            f"peak at {lengths[-1]:,}",
            f"at most {MOST_TIME} and {MOST_MEMORY}",
        ]
        body += [f"### {sight}, forward and backward, {lengths[0]:,} to {lengths[-1]:,}", ""]
        body += [*table(head, rows), "", *sparse(found, sight), ""]
    return body


def sparse(found: Sequence[Point], sight: str) -> list[str]:
    """Whether sparse patterns cost at most 1/rate of the dense kernel."""
    rows = []
    for point in found:
        one = point.passes[BOTH]
        if point.label in SPARSE and one.ratio is not None:
            pairs = f"{fewer_pairs(point.label, point.length, sight):.2f}"
            reached = verdict(one.ratio >= RATE)
            length = f"{point.length:,}"
            rows.append((point.label, length, pairs, f"{one.ratio:.1f}", RATE, reached))
    head = ["pattern", "length", "times fewer pairs", f"times faster than {BASELINE}, {sight}", "at least", "reached"]
    return [*table(head, rows), "", *PAIRS]


def fewer_pairs(label: str, length: int, sight: str) -> float:
    """How many times as many pairs of query and key the dense kernel sees."""
    away = np.arange(length)
    seen = (away % RATE == 0) | (label.startswith("sparse") & (away < RATE))
    pairs = (length - away) * np.where((away == 0) | (sight == CAUSAL), 1, 2)
    return float(pairs.sum() / pairs[seen].sum())


def part_long(options: Options) -> list[str]:
    """Length 8192 beside the fused kernel."""
    length = options.length(8192)
    rows: Rows = []
    for sight, wanted in LONG.items():
        for point in points(list(wanted), sight, [length], options):
            one = point.passes[BOTH]
            goal = wanted.get(point.label)
            reached = "" if goal is None else verdict((one.ratio or 0) >= goal)
            rows.append(
                (
                    point.label,
                    sight,
                    duration(one.seconds) if one.seconds else one.failure,
                    "" if one.bytes is None else amount(one.bytes),
                    f"{one.ratio or 0:.2f}",
                    goal or "",
                    reached,
                )
            )
    head = ["mechanism", "sight", "seconds", "peak", f"x {BASELINE}", "at least", "reached"]
    text = f"Mixing alone, forward and backward, length {length:,}, batch 1, 8 heads of 64."
    return [text, "", *table(head, rows, left=2)]


def part_short(options: Options) -> list[str]:
    """Whole layers on short sentences beside scaled-dot."""
    rows: Rows = []
    for sight, length in product((FULL, CAUSAL), SHORT_LENGTHS):
        changes = {"layer": True, "batch": max(1, options.batch * SHORT_LENGTHS[0] // length)}
        words = [
            word
            for word in measurable(mechanisms.names(), sight == CAUSAL)
            if not any(o.required for o in mechanisms.facts(word).options.values())
        ]
        measured = points(words, sight, [length], options, **changes)
        found = {point.label: point.passes[BOTH] for point in measured}
        base = found["scaled-dot"].samples
        for word, one in found.items():
            if not one.samples or word == BASELINE:
                continue
            ratio = statistics.median(own / b for own, b in zip(one.samples, base, strict=False))
            goal = SHORT.get(word, SHORT_REST)
            told = ("", "") if word == "scaled-dot" else (goal, verdict(ratio <= goal))
            rows.append((word, sight, length, duration(one.seconds or 0), f"{ratio:.2f}", *told))
    head = ["mechanism", "sight", "length", "time", "time by scaled-dot's", "at most", "reached"]
    tokens = options.batch * SHORT_LENGTHS[0]
    text = f"Whole layers of 8 heads of 64, forward and backward, {tokens:,} tokens in a batch."
    return [text, "", *table(head, rows, left=2)]


def part_peers(options: Options) -> list[str]:
    """The same methods by other packages, in the same rounds."""
    torch.set_num_threads(options.threads)
    length = options.length(8192)
    head = ["method and peer", "its time", "our time", "it : ours", "range", "at least 1"]
    lines = [f"Forward and backward, length {length:,}, batch 1, 8 heads of 64, float32.", ""]
    for kept in (False, True):
        if kept:
            keep_freed_memory()
        rows: Rows = []
        for contest in contests(options.setting(FULL), length):
            say(contest.name)
            theirs, ours = in_turn(contest, options.repeats)
            ratios = [its / own for its, own in zip(theirs, ours, strict=True)]
            middle = [duration(statistics.median(times)) for times in (theirs, ours)]
            reached = verdict(statistics.median(ratios) >= 1)
            rows.append((contest.name, *middle, *spread(ratios, 2), reached))
        memory = "kept, as in attnkit's commands" if kept else "given back, as in other programs"
        lines += [f"### Freed memory is {memory}", "", *table(head, rows), ""]
    return [*lines, *NOTES]


def in_turn(contest: Contest, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of the peer and of ours, after a round that warms up."""
    times: tuple[list[float], list[float]] = ([], [])
    sides = [(contest.theirs, times[0]), (contest.ours, times[1])]
    for number in range(repeats + 1):
        for call, kept in sides[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            call()
            if number:
                kept.append(time.perf_counter() - start)
    return times


def part_decode(options: Options) -> list[str]:
    """Time a token and size of the state while a language model decodes."""
    torch.set_num_threads(options.threads)
    count = max(240, DECODED // options.shrink)
    rows: Rows = []
    for word in ("linear", PERFORMER, "gated-delta", "scaled-dot"):
        for one in known([word]):
            say(f"decoding {count:,} tokens: {word}")
            rows.append(decoded(one, count, options.repeats))
    head = [
        "mechanism",
        "tokens 11 to 110",
        f"last 100 of {count:,}",
        "last : first",
        f"at most {STEADY}",
        "state after 110",
        f"state after {count:,}",
    ]
    text = "A decoder of 3 layers of width 256, one row, time of a token (least of the repeats)."
    return [text, "", *table(head, rows)]


def decoded(one: Candidate, count: int, repeats: int) -> Sequence[object]:
    """The row of one mechanism."""
    place = AttentionConfig(name=one.mechanism, **one.options)
    shape = ModelConfig(
        shape="decoder",
        width=256,
        ff=1024,
        heads=4,
        layers=Layers(encoder=0, decoder=3),
        attention=Roles(decoder=place),
    )
    torch.manual_seed(0)
    model = models.build(shape, (1000, 1000), count).eval()
    best = [float("inf")] * count
    sizes = {}
    with torch.inference_mode():
        for _ in range(repeats):
            state = model.start(None, 1)
            ids = torch.full((1, 1), 2)
            for number in range(count):
                start = time.perf_counter()
                logits, state = model.step(ids, state, last=True)
                ids = logits.argmax(-1)
                best[number] = min(best[number], time.perf_counter() - start)
                sizes[number] = bytes_of(state.moving) if number in (109, count - 1) else 0
    first, last = statistics.mean(best[10:110]), statistics.mean(best[-100:])
    steady = "" if one.mechanism == "scaled-dot" else verdict(last <= STEADY * first)
    return (
        one.label,
        duration(first),
        duration(last),
        f"{last / first:.2f}",
        steady,
        amount(sizes[109]),
        amount(sizes[count - 1]),
    )


def bytes_of(state: object) -> int:
    """Bytes of all tensors in a state, room that is kept for later tokens apart."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    return sum(map(bytes_of, state)) if isinstance(state, tuple) else 0


def part_gpu(options: Options) -> list[str]:
    """The same over longer texts in bfloat16 on a GPU, where fused is flash attention."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths = [options.length(length) for length in (1024, 4096, 16384, 65536)]
    body = [f"On {torch.cuda.get_device_name() if device == 'cuda' else device}, bfloat16.", ""]
    for sight in (CAUSAL, FULL):
        words = [*LINEAR[sight], *SPARSE, "scaled-dot"]
        changes = {"device": device, "dtype": "bfloat16", "threads": None}
        rows: Rows = []
        for point in points(words, sight, lengths, options, **changes):
            one = point.passes[BOTH]
            rows.append(
                (
                    point.label,
                    f"{point.length:,}",
                    duration(one.seconds) if one.seconds else one.failure,
                    "" if one.ratio is None else f"{one.ratio:.2f}",
                    "" if one.bytes is None else amount(one.bytes),
                )
            )
        head = ["mechanism", "length", "forward and backward", f"x {BASELINE}", "peak"]
        body += [f"### {sight}", "", *table(head, rows), ""]
    return body


PARTS = {
    "exponents": ("Growth with the length", part_exponents),
    "long": ("Long texts beside the fused kernel", part_long),
    "short": ("Short sentences", part_short),
    "decode": ("Decoding", part_decode),
    "gpu": ("On a GPU", part_gpu),
    "peers": ("The same methods by other packages", part_peers),  # last: it keeps freed memory
}


def with_peers(arguments: Sequence[str], work: Path) -> bool:
    """Run the part `peers` in an environment that has them; whether there was need for it."""
    if all(importlib.util.find_spec(name.replace("-", "_")) for name in PEERS):
        return False
    pinned = ROOT / "constraints.txt"
    python = python_of("attention", [("torch", "-c", pinned, ROOT), ("-c", pinned, *PEERS)], work)
    words = [str(python), str(Path(__file__).resolve()), *arguments, "--part", "peers"]
    subprocess.run(words, check=True, env=environment(), cwd=ROOT)
    return True


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--work", type=Path, help="environment of the peers; default: temporary")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--shrink", type=int, default=1, help="shorter lengths, for a smoke test")
    given = parser.parse_args()
    shorter = 128 if given.shrink == 1 else 4
    options = Options(given.threads, given.repeats, given.shrink, shorter)
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    for name in given.part:
        heading, part = PARTS[name]
        if name == "gpu" and not torch.cuda.is_available() and given.shrink == 1:
            say("part gpu: left out, no GPU is here")
            continue
        say(f"part {name}")
        if name == "peers":
            with tempfile.TemporaryDirectory() as temporary:
                work = (given.work or Path(temporary)).resolve()
                kept = [f"--{key}={getattr(given, key)}" for key in ("repeats", "threads", "shrink")]
                if with_peers(kept, work):
                    continue
        load = load_before()
        body = part(options)
        facts = {
            "command": f"`{command(given, work='WORK')}`",
            "versions": versions("attnkit", "torch", *(PEERS if name == "peers" else ())),
            "threads": str(given.threads),
            "load of the machine": load,
            "repeats": f"{given.repeats}, all in turn; medians",
        }
        publish_part("attention", TITLE, heading, [h for h, _ in PARTS.values()], facts, body)


if __name__ == "__main__":
    main()
