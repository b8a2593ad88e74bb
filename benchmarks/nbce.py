"""What merging contexts costs: time of a token, and memory, against a plain batched forward.

    python benchmarks/nbce.py [--rounds 3] [--threads 2]

A language model with random weights reads n contexts of 200 tokens and writes 24 tokens.  "plain"
is the same model's step on n + 1 rows with the same caches and nothing done to its logits.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import cores, publish, say, spread, table, versions

from attnkit import models
from attnkit.nbce.merge import POOLS, Pool, Rule, entropy
from attnkit.nbce.merged_search import MergedModel
from attnkit.nbce.reader import PromptRow
from attnkit.nbce.run_reader import LanguageModelReader
from attnkit.recipe import schema
from attnkit.recipe.schema import SearchConfig
from attnkit.search.sample import step_by_step

CONTEXTS = (1, 4, 16, 32)
CONTEXT, PROMPT, WRITTEN = 200, 16, 24
WIDTH, LAYERS, HEADS, PIECES = 512, 6, 8, 32_000
ALLOWED = 1.15
SHARP = 4.0
"""Makes the entropies of random weights those of a trained model, a few nats."""
SPEC = SearchConfig(method="greedy", max_length=WRITTEN, min_length=WRITTEN)


class Rows(LanguageModelReader):
    """A reader of ids alone."""

    def __init__(self) -> None:
        spec = {"shape": "decoder", "width": WIDTH, "heads": HEADS, "ff": 4 * WIDTH,
                "layers": {"encoder": 1, "decoder": LAYERS}, "positions": "rope",
                "tie": "none"}  # fmt: skip
        torch.manual_seed(1)
        model = schema.ModelConfig.model_validate(spec)
        self.model = models.build(model, (PIECES, PIECES), CONTEXT + PROMPT + WRITTEN).eval()
        with torch.no_grad():
            self.model.output.weight.mul_(SHARP)
        self.name, self.size, self.ends = "random weights", PIECES, frozenset({3})
        self.limit = self.model.limit


def rows(contexts: int) -> list[PromptRow]:
    """The prompt without context, and with each of them."""
    draw = torch.Generator().manual_seed(contexts)
    ids = torch.randint(4, PIECES, (contexts, CONTEXT), generator=draw).tolist()
    tail = tuple(range(10, 10 + PROMPT))
    return [PromptRow((2,), tail), *(PromptRow((2, *some), tail) for some in ids)]


def seconds(work: Callable[[], object]) -> float:
    """Time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bytes_of(state: object) -> int:
    """Memory of the tensors of a state."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    return sum(map(bytes_of, state)) if isinstance(state, tuple) else 0


@torch.inference_mode()
def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=cores())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    reader = Rows()
    found = []
    nats = 0.0
    for count in CONTEXTS:
        say(f"{count} contexts")
        state = MergedModel(reader, Rule()).start([rows(count)])
        logits, _ = reader.step(torch.full((count + 1, 1), 10 + PROMPT - 1), state.cache)
        logs = logits.log_softmax(-1)
        nats = float(entropy(logs.exp(), logs).mean())
        ids = torch.full((count + 1, 1), 10 + PROMPT - 1)

        def plain(kept: Any = state.cache, ids: torch.Tensor = ids) -> None:
            for _ in range(WRITTEN):
                _, kept = reader.step(ids, kept)

        def merged(pool: Pool, start: Any = state, ids: torch.Tensor = ids) -> None:
            model = MergedModel(reader, Rule(pool))
            step_by_step(model, start, ids[:1], SPEC, WRITTEN, [0])

        ratios: dict[str, list[float]] = {pool: [] for pool in POOLS}
        times = []
        for _ in range(options.rounds):
            times.append(seconds(plain))
            for pool in POOLS:
                ratios[pool].append(seconds(partial(merged, pool)) / times[-1])
        size = bytes_of(state.cache.moving) / 1e6
        for pool in POOLS:
            ratio = statistics.median(ratios[pool])
            found.append(
                [count, pool, f"{statistics.median(times) / WRITTEN * 1e3:,.1f} ms",
                 f"{ratio:.2f}", spread(ratios[pool], 2)[1], "yes" if ratio <= ALLOWED else "no",
                 f"{size:,.1f} MB", f"{size / (count + 1):.2f} MB"]
            )  # fmt: skip
    header = ["contexts", "pool", "plain step", "merged : plain", "range",
              f"at most {ALLOWED}", "kept", "kept a row"]  # fmt: skip
    facts = {
        "command": "python benchmarks/nbce.py",
        "versions": versions("attnkit", "torch"),
        "threads": str(options.threads),
        "model": f"{LAYERS} layers of width {WIDTH}, {PIECES:,} pieces, float32",
        "entropy": f"{nats:.1f} nats a row on average",
        "rounds": f"{options.rounds}, in turn; medians of the rounds' ratios",
    }
    publish("nbce", "The cost of merging contexts", facts, table(header, found))


if __name__ == "__main__":
    main()
