"""Texts as the ids that a run's model reads: encoded, answered by search, checked, batched."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from attnkit.analysis.recorder import stacks
from attnkit.attention import Attention
from attnkit.data.tokenizer import BOS, EOS, PAD, Tokenizer
from attnkit.errors import DataError, UsageError
from attnkit.models.base import Model
from attnkit.recipe.schema import SearchConfig
from attnkit.search import Hypothesis, search
from attnkit.search.batching import batches
from attnkit.search.lines import bounded

SCORES = 2**24
"""Weights of a batch: 64 MB, unless one text has more."""
KEPT = 2**26
"""Weights of all texts in memory: 256 MB, unless one text has more."""
TOKENS = 8192
"""Rows x longest side of a batch, at most."""


class ModelInput(NamedTuple):
    """What the model reads of one text, and where its output comes from."""

    source: list[int]
    """With EOS; empty where the model has no source."""
    ids: list[int]
    """What the decoder reads: BOS, and the output (of a language model behind its prompt)."""
    output: list[int]
    """The output alone, without BOS and EOS."""
    complete: bool = True
    """Whether the output came to its end."""


def how(spec: SearchConfig) -> str:
    """A search in words: greedy, beam 5, sampled, seed 1."""
    if spec.method == "beam" and spec.beam > 1:
        return f"beam {spec.beam}"
    return f"sampled, seed {spec.seed}" if spec.method == "sample" else "greedy"


class InputReader:
    """Makes readings of texts for one model."""

    def __init__(self, model: Model, tokenizer: Tokenizer, *, prompts: bool, longest: int) -> None:
        """`prompts`: the model continues texts; `longest`: the data.max_length of its training."""
        self.model, self.tokenizer = model, tokenizer
        self.prompts, self.longest = prompts, longest
        self.shape = str(model.shape)
        self.device = model.output.weight.device
        self.limits = {"source": source_limit(model), "target": model.limit}

    def encode(self, text: str, name: str = "the text") -> list[int]:
        """Source ids with EOS, or a prompt with BOS.

        Raises:
            UsageError: there is no text.
            DataError: it is longer than the model reads.
        """
        side = self.tokenizer.target if self.prompts else self.tokenizer.source
        ids = side.encode([text])[0]
        if not ids:
            raise UsageError(f"{name} is empty: give at least one word")
        ids = [BOS, *ids] if self.prompts else [*ids, EOS]
        if self.shape != "decoder":
            self._fits(len(ids), "source", name)
        else:
            self._fits(len(ids) + (not self.prompts), "target", name)
        return ids

    def forced(self, source: list[int], target: str | Sequence[int], name: str) -> ModelInput:
        """A reading with a given output, as text or as ids without BOS and EOS.

        Raises:
            UsageError: the target is empty.
            DataError: it is longer than the model reads.
        """
        side = self.tokenizer.target
        output = side.encode([target])[0] if isinstance(target, str) else [int(i) for i in target]
        if not output:
            raise UsageError(f"the target of {name} is empty: give at least one word")
        if outside := [i for i in output if not 0 <= i < len(side)]:
            raise UsageError(f"the target of {name}: id {outside[0]} is not below {len(side)}")
        reading = self._reading(source, output, True)
        before = len(source) if self.shape == "decoder" and not self.prompts else 0
        self._fits(before + len(reading.ids), "target", f"{name} with its target")
        return reading

    def answered(
        self, sources: Sequence[list[int]], spec: SearchConfig, lines: Sequence[int]
    ) -> list[ModelInput]:
        """Readings with the best output that the search finds for each source.

        Raises:
            UsageError: a search ends without an output.
            DataError: the model answers NaN, or has no position left for an output.
        """
        spec = bounded(self.model, spec.model_copy(update={"n_best": 1}), self.longest)
        readings: list[ModelInput | None] = [None] * len(sources)
        beams = spec.beam if spec.method == "beam" else 1
        lengths = [len(ids) for ids in sources]
        for rows in batches(lengths, beams=beams, budget=spec.batch_tokens):
            batch = [sources[row] for row in rows]
            found = self._search(batch, spec, [lines[row] for row in rows])
            for row, hypotheses in zip(rows, found, strict=True):
                if not hypotheses:
                    raise UsageError("the search found no output: loosen its constraints")
                best = hypotheses[0]
                readings[row] = self._reading(sources[row], best.ids, best.complete)
        return [reading for reading in readings if reading is not None]

    def _search(
        self, batch: Sequence[list[int]], spec: SearchConfig, lines: Sequence[int]
    ) -> list[list[Hypothesis]]:
        if not self.prompts:
            return search(self.model, self.pad(batch), spec, lines=lines)
        before = self.pad([ids[:-1] for ids in batch])
        last = self.pad([ids[-1:] for ids in batch])
        return search(self.model, before, spec, lines=lines, first=last)

    def _reading(self, source: list[int], output: list[int], complete: bool) -> ModelInput:
        """An output behind what the model reads before it."""
        if self.prompts:
            reading = ModelInput([], [*source, *output], output, complete)
        else:
            reading = ModelInput(source, [BOS, *output], output, complete)
        before = len(source) if self.shape == "decoder" and not self.prompts else 0
        limit = self.limits["target"]
        if not complete and limit is not None:
            # the last token that a model has room to write is one that it never reads
            return reading._replace(ids=reading.ids[: limit - before])
        return reading

    def pad(self, rows: Sequence[Sequence[int]]) -> Int[Tensor, "B n"]:
        """Rows of ids as one tensor, padded on the right."""
        longest = max(len(row) for row in rows)
        padded = [[*row, *[PAD] * (longest - len(row))] for row in rows]
        return torch.tensor(padded, device=self.device)

    def note(self, reading: ModelInput) -> str:
        """What to say of a reading: longer than in training, or cut."""
        longest = max(len(reading.source), len(reading.ids) - 1)
        notes = []
        if longest > self.longest:
            notes.append(
                f"a side has {longest} tokens, and training had at most {self.longest}"
                " (data.max_length)"
            )
        if not reading.complete:
            notes.append(f"the output was cut at {len(reading.output)} tokens")
        return "; ".join(notes)

    def _fits(self, tokens: int, side: str, name: str) -> None:
        limit = self.limits[side]
        if limit is not None and tokens > limit:
            raise DataError(
                f"{name}: {tokens} tokens, special ones included, but the model reads at most "
                f"{limit}: shorten it, or train with a longer data.max_length"
            )


def source_limit(model: Model) -> int | None:
    """Most tokens that an encoder reads, where weights are tied to positions."""
    found = []
    for layer in stacks(model).get("encoder", []):
        limits = (part.limit for part in layer.modules() if isinstance(part, Attention))
        found += [limit for limit in limits if isinstance(limit, int)]
    table = getattr(getattr(model, "embed_source", None), "table", None)
    if table is not None:
        found.append(table.num_embeddings)
    return min(found, default=None)


def portions(costs: Sequence[int]) -> Iterator[list[int]]:
    """Indices in order, with as many weights together as KEPT lets, but one at least."""
    portion: list[int] = []
    total = 0
    for index, cost in enumerate(costs):
        if portion and total + cost > KEPT:
            yield portion
            portion, total = [], 0
        portion.append(index)
        total += cost
    if portion:
        yield portion


def groups(readings: Sequence[ModelInput], weights: int) -> Iterator[list[int]]:
    """Indices of readings of similar length that are read together, longest first.

    `weights` is how many weights each pair of tokens has: layers x heads of all kinds.
    """
    sizes = [max(len(reading.source), len(reading.ids)) for reading in readings]
    order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    start = 0
    while start < len(order):
        longest = max(1, sizes[order[start]])
        rows = max(1, min(TOKENS // longest, SCORES // (longest * longest * weights)))
        yield order[start : start + rows]
        start += rows
