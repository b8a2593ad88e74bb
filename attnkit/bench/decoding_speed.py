"""Speed and memory of decoding with the search of `attnkit generate`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch

from attnkit.bench.speed import Speed, peak, timed, write_trace
from attnkit.memory import keep_freed_memory
from attnkit.ops.operation_count import count_operations
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.scoring.evaluation import answers

WARM, PROFILED, SINGLE = 16, 64, 20
"""Number of lines decoded for warm-up, under the profiler (and to count operations), and one at a time."""


@dataclass(frozen=True, kw_only=True)
class DecodingSpeed(Speed):
    """Speed of decoding, from text to text."""

    search: str
    lines: int
    lines_per_second: float
    one_line_seconds: float
    """Median time of a line decoded alone."""


def measure(
    run: Run,
    search: SearchConfig,
    sources: Sequence[str],
    device: str,
    trace: Path | None = None,
    note: Callable[[str], object] = lambda _: None,
) -> DecodingSpeed:
    """Time the decoding of all sources; with `trace`, decode a part of them under the profiler.

    Raises:
        DataError: If the model produces NaN, or is damaged.
        OutputError: If the trace cannot be written.
    """
    recipe, model, tokenizer = run.recipe, run.model(device), run.tokenizer()
    if device == "cpu":
        keep_freed_memory()

    def decode(texts: Sequence[str]) -> list[str]:
        return list(answers(model, tokenizer, texts, recipe, search))

    def tokens(texts: Sequence[str]) -> int:
        return sum(len(ids) + 1 for ids in tokenizer.target.encode(texts))

    note(f"{len(sources):,} lines")
    peaks = {"fp32": peak("fp32", device)}
    decode(sources[:WARM])
    outputs = list[str]()
    seconds, memory = timed(lambda: outputs.extend(decode(sources)), device)
    note("one line at a time")
    single = [timed(partial(decode, [source]), device)[0] for source in sources[:SINGLE]]
    sample = sources[:: max(1, len(sources) // PROFILED)]
    if trace is not None:
        note(f"{len(sample)} lines under the profiler")
        write_trace(trace, lambda: decode(sample), device)
    sample_outputs: list[str] = []
    operations = count_operations(lambda: sample_outputs.extend(decode(sample)))
    search_name = f"beam {search.beam}" if search.method == "beam" else search.method
    return DecodingSpeed(
        device=device,
        threads=torch.get_num_threads(),
        seconds=seconds,
        tokens_per_second=tokens(outputs) / seconds,
        peaks=peaks,
        peak_memory_bytes=memory,
        operations_per_token=operations / max(1, tokens(sample_outputs)),
        search=search_name,
        lines=len(sources),
        lines_per_second=len(sources) / seconds,
        one_line_seconds=median(single),
    )
