"""Time and memory of attention mechanisms: growth with length, long and short texts, other packages, decoding.

    python benchmarks/attention.py [--part exponents long short decode peers]

Each part writes its own section of results/attention.md and keeps the others. `attnkit.bench`, the library of `attnkit
bench attention`, measures attention without projections. The packages of the part `peers` are installed with
`pip install '.[test]'`. For a smoke test: --shrink 64 --repeats 1.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from common import arguments, cores, facts, publish, say, spread, table
from mixing_peers import CAUSAL, FULL, LOCAL, NOTES, PEERS, PERFORMER, Contest, contests

from attnkit import mechanisms, models
from attnkit.bench.plan import BASELINE, PASSES, Workload, candidate, measurable, sweeps
from attnkit.bench.schedule import Point, measure
from attnkit.memory import keep_freed_memory
from attnkit.recipe.schema import AttentionConfig, Layers, ModelConfig, Roles
from attnkit.show.bench_tables import exponents
from attnkit.show.quantities import amount, duration

BOTH = PASSES[1]
NYSTROM = "nystrom:landmarks=64"
LINEAR = {
    CAUSAL: ("linear", PERFORMER, LOCAL, "gated-delta"),
    FULL: ("linear", "efficient", PERFORMER, NYSTROM, LOCAL, "linformer"),
}
"""Mechanisms whose exponents must be close to 1."""
SPARSE, RATE = ("sparse:rate=8", "atrous:rate=8"), 8
PAIRS = """\
If a pattern takes as much time per pair as the dense kernel, it is faster by the ratio of their pairs; it is faster by
more than that if the dense kernel takes more time per pair."""
MAX_TIME, MAX_MEMORY = 1.15, 1.1
"""Exponents."""
LONG = {CAUSAL: {"linear": 12, LOCAL: 6, PERFORMER: 5}, FULL: {PERFORMER: 8, NYSTROM: 8, "efficient": 25}}
"""How many times faster than the fused kernel each must be at length 8192, forward and backward."""
SHORT_DEFAULT, SLOWER = 1.6, 3.0
"""Maximum time of a layer on short texts as a multiple of that with scaled-dot, and that of these mechanisms:"""
SLOWER_MECHANISMS = (
    *("additive", "block-topk", "decay", "differential", "entmax"),
    *("forgetting", "gated-delta", "nystrom", "performer", "stick-breaking"),
)
SHORT = {"synthesizer-random": 1.0, **dict.fromkeys(SLOWER_MECHANISMS, SLOWER)}
SHORT_LENGTHS = (32, 128)
DECODED, STEADY = 2000, 1.1
"""Tokens of a decoding, and how much slower than the first tokens the last may be."""

Rows = list[Sequence[object]]


def shorter(length: int, options: argparse.Namespace) -> int:
    """Return the length, or a shorter one in a smoke test."""
    return max(32, length // int(options.shrink))


def points(
    labels: Sequence[str], sight: str, lengths: Sequence[int], options: argparse.Namespace, **changes: Any
) -> list[Point]:
    """Measure mechanisms in turn with the baseline."""
    load = Workload(causal=sight == CAUSAL, repeats=options.repeats, threads=cores(), budget=20.0)
    return list(measure(sweeps([*map(candidate, labels)], lengths), load._replace(**changes), say))


def yes(reached: bool) -> str:
    return "yes" if reached else "no"


def part_exponents(options: argparse.Namespace) -> list[str]:
    """Fit the growth of time and memory; compare sparse patterns with the dense kernel."""
    lengths = [shorter(length, options) for length in (2048, 4096, 8192, 16384)]
    body: list[str] = []
    for sight in (CAUSAL, FULL):
        found = points([*LINEAR[sight], *SPARSE], sight, lengths, options, repeats=min(3, options.repeats))
        rows: Rows = []
        for label, fits in exponents(found).items():
            seconds, memory = fits[BOTH], fits["memory"]
            if seconds is None or memory is None:
                rows.append((label, "-", "-", "-", "-"))
                continue
            reached = yes(seconds.exponent <= MAX_TIME and memory.exponent <= MAX_MEMORY)
            longest = next(point for point in reversed(found) if point.label == label).passes[BOTH]
            largest = duration(longest.seconds or 0), amount(longest.bytes or 0)
            powers = f"{seconds.exponent:.2f}", f"{memory.exponent:.2f}"
            rows.append((label, *powers, *largest, reached if label in LINEAR[sight] else ""))
        head = f"mechanism | time exponent | memory exponent | time at {lengths[-1]:,} | peak at {lengths[-1]:,}"
        body += [f"### {sight}, forward and backward, {lengths[0]:,} to {lengths[-1]:,}"]
        body += [table(f"{head} | at most {MAX_TIME} and {MAX_MEMORY}", rows)]
        rows = []
        for point in found:
            result = point.passes[BOTH]
            if point.label in SPARSE and result.ratio is not None:
                pairs = f"{fewer_pairs(point.label, point.length, sight):.2f}"
                ratio = f"{result.ratio:.1f}", RATE, yes(result.ratio >= RATE)
                rows.append((point.label, f"{point.length:,}", pairs, *ratio))
        head = f"pattern | length | times fewer pairs | times faster than {BASELINE}, {sight} | at least | reached"
        body += [table(head, rows), PAIRS]
    return body


def fewer_pairs(label: str, length: int, sight: str) -> float:
    """Return the ratio of the pairs of query and key in the dense kernel to those in the pattern."""
    distance = np.arange(length)
    seen = (distance % RATE == 0) | (label.startswith("sparse") & (distance < RATE))
    pairs = (length - distance) * np.where((distance == 0) | (sight == CAUSAL), 1, 2)
    return float(pairs.sum() / pairs[seen].sum())


def part_long(options: argparse.Namespace) -> list[str]:
    """Compare mechanisms with the fused kernel at length 8192."""
    length = shorter(8192, options)
    rows: Rows = []
    for sight, goals in LONG.items():
        for point in points(list(goals), sight, [length], options):
            result, goal = point.passes[BOTH], goals.get(point.label)
            seconds = duration(result.seconds) if result.seconds else result.failure
            memory = "" if result.bytes is None else amount(result.bytes)
            reached = "" if goal is None else yes((result.ratio or 0) >= goal)
            rows.append((point.label, sight, seconds, memory, f"{result.ratio or 0:.2f}", goal or "", reached))
    text = f"Attention without projections, forward and backward, length {length:,}, batch 1, 8 heads of 64."
    return [text, table(f"mechanism | sight | seconds | peak | x {BASELINE} | at least | reached", rows, 2)]


def part_short(options: argparse.Namespace) -> list[str]:
    """Compare whole layers with scaled-dot on short sentences."""
    rows: Rows = []
    tokens = (128 if options.shrink == 1 else 4) * SHORT_LENGTHS[0]
    for sight, length in product((FULL, CAUSAL), SHORT_LENGTHS):
        words = [
            word
            for word in measurable(mechanisms.names(), sight == CAUSAL)
            if not any(option.required for option in mechanisms.facts(word).options.values())
        ]
        measured = points(words, sight, [length], options, layer=True, batch=max(1, tokens // length))
        found = {point.label: point.passes[BOTH] for point in measured}
        base = found["scaled-dot"].samples
        for word, result in found.items():
            if not result.samples or word == BASELINE:
                continue
            ratio = statistics.median(own / other for own, other in zip(result.samples, base, strict=False))
            goal = SHORT.get(word, SHORT_DEFAULT)
            reached = ("", "") if word == "scaled-dot" else (goal, yes(ratio <= goal))
            rows.append((word, sight, length, duration(result.seconds or 0), f"{ratio:.2f}", *reached))
    head = "mechanism | sight | length | time | time by scaled-dot's | at most | reached"
    text = f"Whole layers of 8 heads of 64, forward and backward, {tokens:,} tokens in a batch."
    return [text, table(head, rows, left=2)]


def part_peers(options: argparse.Namespace) -> list[str]:
    """Compare the same methods in other packages, in the same rounds."""
    torch.set_num_threads(cores())
    length = shorter(8192, options)
    lines = [f"Forward and backward, length {length:,}, batch 1, 8 heads of 64, float32."]
    for memory in ("given back, as in other programs", "kept, as in attnkit's commands"):
        if memory.startswith("kept"):
            keep_freed_memory()
        rows: Rows = []
        for contest in contests(length):
            say(contest.name)
            theirs, ours = in_turn(contest, options.repeats)
            ratios = [its / own for its, own in zip(theirs, ours, strict=True)]
            medians = [duration(statistics.median(times)) for times in (theirs, ours)]
            rows.append((contest.name, *medians, *spread(ratios, 2), yes(statistics.median(ratios) >= 1)))
        head = "method and peer | its time | our time | it : ours | range | at least 1"
        lines += [f"### Freed memory is {memory}", table(head, rows)]
    return [*lines, NOTES]


def in_turn(contest: Contest, repeats: int) -> tuple[list[float], list[float]]:
    """Return the seconds of the peer and of attnkit, after a round of warm-up."""
    times: tuple[list[float], list[float]] = ([], [])
    sides = [(contest.theirs, times[0]), (contest.ours, times[1])]
    for number in range(repeats + 1):
        for call, kept in sides[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            call()
            if number:
                kept.append(time.perf_counter() - start)
    return times


def part_decode(options: argparse.Namespace) -> list[str]:
    """Measure the time per token and the size of the state while a language model decodes."""
    torch.set_num_threads(cores())
    count = max(240, DECODED // options.shrink)
    rows = [decoded(label, count, options.repeats) for label in ("linear", PERFORMER, "gated-delta", "scaled-dot")]
    head = f"mechanism | tokens 11 to 110 | last 100 of {count:,} | last : first | at most {STEADY}"
    text = "A decoder of 3 layers of width 256, one row, time per token (minimum of the repeats)."
    return [text, table(f"{head} | state after 110 | state after {count:,}", rows)]


def decoded(label: str, count: int, repeats: int) -> Sequence[object]:
    """Return the row of one mechanism."""
    say(f"decoding {count:,} tokens: {label}")
    chosen = candidate(label)
    roles = Roles(decoder=AttentionConfig(name=chosen.mechanism, **chosen.options))
    layers = Layers(encoder=0, decoder=3)
    shape = ModelConfig(shape="decoder", width=256, ff=1024, heads=4, layers=layers, attention=roles)
    torch.manual_seed(0)
    model = models.build(shape, (1000, 1000), count).eval()
    best, sizes = [float("inf")] * count, {}
    with torch.inference_mode():
        for _ in range(repeats):
            state = model.start(None, 1)
            ids = torch.full((1, 1), 2)
            for number in range(count):
                start = time.perf_counter()
                logits, state = model.step(ids, state, last=True)
                ids = logits.argmax(-1)
                best[number] = min(best[number], time.perf_counter() - start)
                if number in (109, count - 1):
                    sizes[number] = amount(bytes_of(state.moving))
    first, last = statistics.mean(best[10:110]), statistics.mean(best[-100:])
    steady = "" if label == "scaled-dot" else yes(last <= STEADY * first)
    return (label, duration(first), duration(last), f"{last / first:.2f}", steady, *sizes.values())


def bytes_of(state: object) -> int:
    """Return the bytes of all tensors in a state, without space that is reserved for later tokens."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    return sum(map(bytes_of, state)) if isinstance(state, tuple) else 0


PARTS = {
    "exponents": ("Growth with the length", part_exponents),
    "long": ("Long texts beside the fused kernel", part_long),
    "short": ("Short sentences", part_short),
    "decode": ("Decoding", part_decode),
    "peers": ("The same methods by other packages", part_peers),  # last: it keeps freed memory
}


def main() -> None:
    options = arguments(__doc__, part=[*PARTS], repeats=5, shrink=1)
    for name in options.part or PARTS:
        say(f"part {name}")
        heading, part = PARTS[name]
        about = facts(options, *(PEERS if name == "peers" else ())) | {"threads": str(cores())}
        about["repeats"] = f"{options.repeats}, all in turn; medians"
        order = [heading for heading, _ in PARTS.values()]
        publish("attention", "Attention mechanisms: time and memory", about, part(options), heading, order)


if __name__ == "__main__":
    main()
