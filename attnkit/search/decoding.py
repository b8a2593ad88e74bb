"""From encoded sentences to hypotheses, and from lines of text to lines of text.

`search` takes one padded batch, `search_all` any number of sentences, `translate` lines of text.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import torch
from jaxtyping import Int
from torch import Tensor

from attnkit.data.rare_words import rare_words
from attnkit.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from attnkit.distributed import group
from attnkit.errors import RecipeError
from attnkit.models.base import Model
from attnkit.models.fast_decoder import FastDecoder
from attnkit.recipe.schema import SearchConfig
from attnkit.search import base
from attnkit.search.base import Hypothesis
from attnkit.search.beam import beam_search
from attnkit.search.sample import step_by_step

SHORTEST = 8
"""Shorter sources count as this long: scores over the vocabulary take memory for each row."""
EMPTY_LINE = ("", 0.0)
"""The answer to a line without text."""
NO_HYPOTHESIS = ("", float("-inf"))
"""Stands where a search found fewer hypotheses than were requested."""


@dataclass
class LineCounts:
    """What happened to the lines of a translation."""

    lines: int = 0
    """Lines read."""
    empty: int = 0
    """Lines without text, answered by an empty line."""
    truncated: int = 0
    """Lines of which only the first tokens (of a prompt: the last) were read."""
    unfinished: int = 0
    """Lines whose best output was closed without an end token, at the maximum length."""
    unknown: Counter[str] = field(default_factory=Counter)
    """What of the lines has no piece, and how often; see `Vocabulary.unknown`."""
    rare: Counter[str] | None = None
    """A word of each line that is unlike the training text (see `rare_words`); None: not wanted."""


class Engine(Protocol):
    """A model in another library, which searches by itself."""

    shape: str
    limit: int | None

    def search_all(
        self, sources: Sequence[Sequence[int]], spec: SearchConfig, *, lines: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """The n best outputs of each source, in order; see the function of this name."""


def translate(
    model: Model | Engine,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    spec: SearchConfig,
    *,
    max_source: int,
    block: int = 2048,
    prompts: bool = False,
    counts: LineCounts | None = None,
) -> Iterator[list[tuple[str, float]]]:
    """For each text, in order, its spec.n_best outputs as (text, score), best first.

    Reads and answers `block` texts at a time; inside a block they are sorted by length.  A text
    without tokens gets empty outputs (score 0) without running the model; where a search finds
    fewer hypotheses than requested, empty ones with score -inf take their places.

    Args:
        model: an encoder-decoder or a decoder, ours or in another library.
        tokenizer: the model's.
        texts: one line each; of several ranks the main one reads them.
        spec: how to search; batch_tokens bounds sentences x beams x the longest source.
        max_source: longest source in tokens, EOS included; longer ones are cut and counted.
        block: texts read before the first answer, and held in memory.
        prompts: the model is a language model and continues each text.
        counts: updated with every block.

    Raises RecipeError, UsageError, DataError: as `search`.
    """
    check_n_best(spec)
    counts = LineCounts() if counts is None else counts
    spec = clamp_max_length(model, spec, max_source)
    remaining = iter(texts)
    # the main process reads for all ranks
    while lines := group.broadcast_object(list(islice(remaining, block))):
        sources = encode_lines(tokenizer, lines, max_source, counts, prompts=prompts)
        rows = [row for row, ids in enumerate(sources) if ids]
        batch, numbers = [sources[row] for row in rows], [counts.lines + row for row in rows]
        found = search_all(model, batch, spec, lines=numbers, prompts=prompts)
        counts.lines += len(lines)
        counts.empty += len(lines) - len(rows)
        counts.unfinished += sum(not n_best[0].complete for n_best in found if n_best)
        decoded = iter(tokenizer.target.decode([h.ids for n_best in found for h in n_best]))
        outputs = {
            row: [(next(decoded), hypothesis.score) for hypothesis in n_best]
            for row, n_best in zip(rows, found, strict=True)
        }
        for row in range(len(lines)):
            filler = NO_HYPOTHESIS if row in outputs else EMPTY_LINE
            answer = outputs.get(row, [])
            yield answer + [filler] * (spec.n_best - len(answer))


def encode_lines(
    tokenizer: Tokenizer, texts: Sequence[str], longest: int, counts: LineCounts, *, prompts: bool = False
) -> list[list[int]]:
    """Source ids, with EOS (of prompts: with BOS before them); [] where there is no text."""
    vocabulary, sources = tokenizer.target if prompts else tokenizer.source, []
    encoded = vocabulary.encode(texts)
    counts.unknown += vocabulary.unknown(text for text, ids in zip(texts, encoded, strict=True) if UNK in ids)
    if counts.rare is not None:
        counts.rare.update(rare_words(vocabulary, texts))
    for ids in encoded:
        counts.truncated += len(ids) >= longest
        if ids:
            ids = [BOS, *ids[-max(1, longest - 1) :]] if prompts else [*ids[: longest - 1], EOS]
        sources.append(ids)
    return sources


def clamp_max_length(model: Model | Engine, spec: SearchConfig, max_source: int) -> SearchConfig:
    """The search with outputs short enough that a decoder has positions for the longest source.

    The limit is the same for every line, whatever the longest one in its batch.
    """
    if model.limit is None or model.shape != "decoder":
        return spec
    longest = max(1, min(spec.max_length, model.limit - max_source))
    return spec.model_copy(update={"max_length": longest})


def search_all(
    model: Model | Engine,
    sources: Sequence[Sequence[int]],
    spec: SearchConfig,
    *,
    lines: Sequence[int],
    prompts: bool = False,
) -> list[list[Hypothesis]]:
    """The n best outputs of each source, in order; searched in batches of similar length.

    No source is empty; each ends with EOS or, where outputs continue them (`prompts`), starts with
    BOS.  For `spec` see `translate`, for `lines` see `search`.

    Raises RecipeError, UsageError, DataError: as `search`.
    """
    if not isinstance(model, Model):
        return model.search_all(sources, spec, lines=lines)
    answers: dict[int, list[Hypothesis]] = {}
    beams = spec.beam if spec.method == "beam" else spec.n_best
    device = model.output.weight.device
    # several ranks deal out the batches of one process alone
    every = batches([len(ids) for ids in sources], beams=beams, budget=spec.batch_tokens)
    for rows in islice(every, group.rank(), None, group.world_size()):
        batch, first = [sources[row] for row in rows], None
        if prompts:
            first = pad([ids[-1:] for ids in batch], device)
            batch = [ids[:-1] for ids in batch]  # the last one is read by the first step
        numbers = [lines[row] for row in rows]
        found = search(model, pad(batch, device), spec, lines=numbers, first=first)
        answers |= dict(zip(rows, found, strict=True))
    parts = group.all_gather_object(answers)
    answers = {row: n_best for part in parts for row, n_best in part.items()}
    return [answers[row] for row in range(len(sources))]


def batches(lengths: Sequence[int], *, beams: int, budget: int) -> Iterator[list[int]]:
    """Indices of sentences of similar length, longest first, equal lengths in order.

    A batch holds at most `budget` tokens, counted as sentences x beams x its longest source, but
    always one sentence.  Longest first, so that a lack of memory shows at once.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        cost = beams * max(lengths[order[start]], SHORTEST)
        size = max(1, budget // cost)
        size -= size % base.bucket_size(size)  # few sizes occur, so few are compiled
        yield order[start : start + size]
        start += size


def pad(rows: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "B S"]:
    """Rows of ids as one tensor, padded on the right."""
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], device=device)


@torch.inference_mode()
def search(
    model: Model,
    source: Int[Tensor, "B S"],
    spec: SearchConfig,
    *,
    lines: Sequence[int],
    first: Int[Tensor, "B 1"] | None = None,
) -> list[list[Hypothesis]]:
    """The n best outputs of each sentence, best first: spec.n_best, or fewer if there are no more.

    A sentence's answer does not depend on the rest of the batch, up to the rounding of the model's
    matrix products.  The model answers as in evaluation, whatever its mode.

    Args:
        model: an encoder-decoder or a decoder.
        source: rows that end with EOS, padded with PAD on the right.
        spec: method and limits.
        lines: 0-based number of each sentence in the input; seeds sampling and names it in errors.
        first: the token that the output follows; BOS unless a language model continues a prompt,
            whose last token it then is, the source being the tokens before it.

    Raises:
        RecipeError: more hypotheses are requested than the method gives.
        DataError: the model answers NaN, or has no position left for an output.
    """
    check_n_best(spec)
    if not len(source):
        return []
    training = model.training
    if training:
        model.eval()
    try:
        longest = base.longest_output(model, source, spec.max_length)
        ids = source.new_full((len(source), 1), BOS) if first is None else first
        reader = FastDecoder.of(model) or model
        state = reader.start(source, rows=len(source))
        method = beam_search if spec.method == "beam" else step_by_step
        return method(reader, state, ids, spec, longest, lines)
    finally:
        if training:
            model.train()


def check_n_best(spec: SearchConfig) -> None:
    """Raise RecipeError where the method cannot give so many hypotheses."""
    key, text = spec.misfit
    if key == "n_best":
        raise RecipeError(f"search.{key}: {text}")
