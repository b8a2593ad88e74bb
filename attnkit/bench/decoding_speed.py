"""What decoding costs, by the search that `attnkit generate` runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import torch

from attnkit import models
from attnkit.bench.speed import Speed, peak, timed, write_trace
from attnkit.data.preparation import prepare
from attnkit.data.rows import Row
from attnkit.data.tokenizer import Tokenizer
from attnkit.errors import DataError
from attnkit.memory import keep_freed_memory
from attnkit.models import Model
from attnkit.ops.operation_count import count_operations
from attnkit.recipe import Recipe
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.scoring.evaluation import answers, corpus_of

WARM, PROFILED, SINGLE = 16, 64, 20
"""Lines decoded before the clock starts, under the profiler (and for counting), and one at a time."""


@dataclass(frozen=True, kw_only=True)
class DecodingSpeed(Speed):
    """The speed of decoding, text to text."""

    search: str
    lines: int
    lines_per_second: float
    one_line_seconds: float
    """Median of a line by itself."""


class Decoded(NamedTuple):
    """What is decoded by what."""

    model: Model
    tokenizer: Tokenizer
    recipe: Recipe
    search: SearchConfig
    sources: list[str]


def trained(run: Run, search: SearchConfig, split: str, rows: int, device: str, *data: Any) -> Decoded:
    """The model of a run, and the first sources of a split; `data` is as for `corpus_of`.

    Raises MissingInputError, DataError: as `corpus_of`, `Run.model`; or the rows have no source.
    """
    sources = _sources(list(islice(corpus_of(run, *data).rows(split), rows)))
    return Decoded(run.model(device), run.tokenizer(), run.recipe, search, sources)


def untrained(
    recipe: Recipe, search: SearchConfig, split: str, rows: int, device: str, data_dir: Path | None, offline: bool
) -> Decoded:
    """A model with random weights, whose outputs are all as long as the references on average.

    Raises MissingInputError, DataError, UnavailableError: as `prepare`; or rows have no source.
    """
    prepared = prepare(recipe, data_dir=data_dir, offline=offline)
    tokenizer, taken = prepared.tokenizer, list(islice(prepared.corpus.rows(split), rows))
    sources = _sources(taken)
    length = 1 + round(mean(map(len, tokenizer.target.encode([row.target for row in taken]))))
    search = search.model_copy(update={"min_length": length, "max_length": length})
    model = models.build_for(recipe, tokenizer.sizes).to(device).eval()
    return Decoded(model, tokenizer, recipe, search, sources)


def _sources(rows: Sequence[Row]) -> list[str]:
    if not any(row.source for row in rows):
        raise DataError("the rows have no source, so there is nothing to decode from")
    return [row.source for row in rows]


def measure(
    subject: Decoded, device: str, trace: Path | None = None, note: Callable[[str], object] = lambda _: None
) -> DecodingSpeed:
    """Decode the sources: all for the clock, a part of them under the profiler if a trace is wanted.

    Raises:
        DataError: the model answers NaN.
        OutputError: the trace cannot be written.
    """
    model, tokenizer, recipe, search, sources = subject
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
    some = sources[:: max(1, len(sources) // PROFILED)]
    if trace is not None:
        note(f"{len(some)} lines under the profiler")
        write_trace(trace, lambda: decode(some), device)
    made: list[str] = []
    operations = count_operations(lambda: made.extend(decode(some)))
    how = f"beam {search.beam}" if search.method == "beam" else search.method
    return DecodingSpeed(
        device=device,
        threads=torch.get_num_threads(),
        seconds=seconds,
        tokens_per_second=tokens(outputs) / seconds,
        peaks=peaks,
        peak_memory_bytes=memory,
        operations_per_token=operations / max(1, tokens(made)),
        search=how,
        lines=len(sources),
        lines_per_second=len(sources) / seconds,
        one_line_seconds=median(single),
    )
