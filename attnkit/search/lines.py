"""From lines of text to lines of text: encode, search in batches, decode, put back in order."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Int
from torch import Tensor

from attnkit.data.tokenizer import BOS, EOS, PAD, Tokenizer
from attnkit.models.base import Model
from attnkit.recipe.schema import SearchConfig
from attnkit.search.base import Hypothesis
from attnkit.search.batching import batches
from attnkit.search.sentences import check, search

NONE = ("", 0.0)
"""The answer to a line without text."""
MISSING = ("", float("-inf"))
"""Stands where a search has fewer hypotheses than were asked for."""


@dataclass
class Tally:
    """What happened to the lines of a translation."""

    lines: int = 0
    """Lines read."""
    empty: int = 0
    """Lines without text, answered by an empty line."""
    truncated: int = 0
    """Lines of which only the first tokens (of a prompt: the last) were read."""
    unfinished: int = 0
    """Lines whose best output was closed without an end token, at the longest length."""


def translate(
    model: Model,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    spec: SearchConfig,
    *,
    max_source: int,
    device: torch.device | str = "cpu",
    block: int = 2048,
    prompts: bool = False,
    tally: Tally | None = None,
) -> Iterator[list[tuple[str, float]]]:
    """For each text, in order, its spec.n_best outputs as (text, score), best first.

    Reads and answers `block` texts at a time; inside a block they are sorted by length.  A text
    without tokens gets empty outputs (score 0) and never meets the model; where a search finds
    fewer hypotheses than asked for, empty ones with score -inf take their places.

    Args:
        model: on `device`.
        tokenizer: the model's.
        texts: one line each.
        spec: how to search; batch_tokens bounds sentences x beams x the longest source.
        max_source: longest source in tokens, EOS included; longer ones are cut and counted.
        device: where the model is.
        block: texts read before the first answer, and kept in memory.
        prompts: the model is a language model, and continues each text; the answer is what follows.
        tally: counts are added here.

    Raises:
        RecipeError, UsageError, DataError: as `search`.
    """
    check(spec)
    tally = Tally() if tally is None else tally
    spec = bounded(model, spec, max_source)
    job = _TranslationJob(model, tokenizer, spec, max_source, torch.device(device), prompts, tally)
    rest = iter(texts)
    while texts_now := list(islice(rest, block)):
        yield from job.block(texts_now)


def bounded(model: Model, spec: SearchConfig, max_source: int) -> SearchConfig:
    """A search for outputs that leave a decoder room for the longest source.

    The limit is the same for every line, whatever the longest one in its batch.
    """
    if model.limit is None or model.shape != "decoder":
        return spec
    most = max(1, min(spec.max_length, model.limit - max_source))
    return spec.model_copy(update={"max_length": most})


@dataclass
class _TranslationJob:
    """The arguments of `translate`."""

    model: Model
    tokenizer: Tokenizer
    spec: SearchConfig
    max_source: int
    device: torch.device
    prompts: bool
    tally: Tally

    def block(self, texts: Sequence[str]) -> list[list[tuple[str, float]]]:
        """Answers to some texts, in order."""
        sources = self.encode(texts)
        first_line = self.tally.lines
        self.tally.lines += len(texts)
        there = [index for index, ids in enumerate(sources) if ids]
        self.tally.empty += len(texts) - len(there)
        found: list[list[Hypothesis]] = [[] for _ in texts]
        beams = self.spec.beam if self.spec.method == "beam" else self.spec.n_best
        lengths = [len(sources[index]) for index in there]
        for batch in batches(lengths, beams=beams, budget=self.spec.batch_tokens):
            rows = [there[index] for index in batch]
            lines = [first_line + row for row in rows]
            answers = self.search([sources[row] for row in rows], lines)
            for row, hypotheses in zip(rows, answers, strict=True):
                found[row] = hypotheses
        self.tally.unfinished += sum(not some[0].complete for some in found if some)
        return self.decode(found, set(there))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Source ids, with EOS (of prompts: with BOS before them); [] where there is no text."""
        vocabulary = self.tokenizer.target if self.prompts else self.tokenizer.source
        sources = []
        for ids in vocabulary.encode(texts):
            self.tally.truncated += len(ids) >= self.max_source
            if not ids:
                sources.append(ids)
            elif self.prompts:
                sources.append([BOS, *ids[-max(1, self.max_source - 1) :]])
            else:
                sources.append([*ids[: self.max_source - 1], EOS])
        return sources

    def search(self, sources: Sequence[list[int]], lines: Sequence[int]) -> list[list[Hypothesis]]:
        """Hypotheses for one batch."""
        if not self.prompts:
            return search(self.model, self.pad(sources), self.spec, lines=lines)
        before = self.pad([ids[:-1] for ids in sources])
        last = self.pad([ids[-1:] for ids in sources])
        return search(self.model, before, self.spec, lines=lines, first=last)

    def pad(self, rows: Sequence[list[int]]) -> Int[Tensor, "B S"]:
        """Rows of ids as one tensor, padded on the right."""
        longest = max(len(row) for row in rows)
        padded = [row + [PAD] * (longest - len(row)) for row in rows]
        return torch.tensor(padded, device=self.device)

    def decode(
        self, found: Sequence[list[Hypothesis]], there: set[int]
    ) -> list[list[tuple[str, float]]]:
        """Texts and scores; those without hypotheses get the answers that stand for none."""
        texts = iter(self.tokenizer.target.decode([h.ids for some in found for h in some]))
        answers = []
        for row, some in enumerate(found):
            answer = [(next(texts), hypothesis.score) for hypothesis in some]
            spare = self.spec.n_best - len(answer)
            answers.append(answer + [MISSING if row in there else NONE] * spare)
        return answers
