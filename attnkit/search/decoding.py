"""Decoding of one padded batch (`search`), any number of sentences (`search_all`) and lines of text (`translate`)."""

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
from attnkit.search.sample import greedy_or_sample

MIN_SOURCE_LENGTH = 8
"""Minimum source length in the cost of a batch: scores over the vocabulary take memory for each row."""
EMPTY_LINE = ("", 0.0)
"""Output for a line without text."""
NO_HYPOTHESIS = ("", float("-inf"))
"""Filler if a search finds fewer hypotheses than requested."""


@dataclass
class LineCounts:
    """Counts of lines that a model has read."""

    lines: int = 0
    empty: int = 0
    """Lines without text; their output is empty."""
    truncated: int = 0
    """Lines cut to their first tokens (prompts: to their last tokens)."""
    unfinished: int = 0
    """Lines whose best output ended without EOS."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Characters or words without a piece in the vocabulary; see `Vocabulary.unknown`."""
    rare: Counter[str] | None = None
    """One word of each line that is unlike the training text (see `rare_words`); None: not counted."""


class Engine(Protocol):
    """Model in another library, with its own search."""

    shape: str
    limit: int | None

    def search_all(
        self, sources: Sequence[Sequence[int]], spec: SearchConfig, *, lines: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """Return the n best outputs of each source, as the function `search_all`."""


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
    """Yield for each text, in order, its spec.n_best outputs as (text, score), best first.

    A text without tokens gets empty outputs (score 0), and the model does not run. If a search finds fewer hypotheses
    than requested, empty outputs of score -inf follow.

    Args:
        model: an encoder-decoder or a decoder, of attnkit or of another library.
        texts: one line each; of several ranks the main rank reads them.
        spec: settings of the search; batch_tokens bounds sentences * beams * maximum source length.
        max_source: maximum number of tokens in a source, EOS included; longer sources are cut and counted.
        block: number of texts that are read, sorted by length and answered at a time.
        prompts: whether the model is a language model that continues each text.
        counts: updated after each block.

    Raises RecipeError, UsageError or DataError as `search`.
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
        hypotheses = search_all(model, batch, spec, lines=numbers, prompts=prompts)
        counts.lines += len(lines)
        counts.empty += len(lines) - len(rows)
        counts.unfinished += sum(not n_best[0].complete for n_best in hypotheses if n_best)
        decoded = iter(tokenizer.target.decode([h.ids for n_best in hypotheses for h in n_best]))
        outputs = {
            row: [(next(decoded), h.score) for h in n_best] for row, n_best in zip(rows, hypotheses, strict=True)
        }
        for row in range(len(lines)):
            filler = NO_HYPOTHESIS if row in outputs else EMPTY_LINE
            answer = outputs.get(row, [])
            yield answer + [filler] * (spec.n_best - len(answer))


def encode_lines(
    tokenizer: Tokenizer, texts: Sequence[str], max_length: int, counts: LineCounts, *, prompts: bool = False
) -> list[list[int]]:
    """Return the ids of each text followed by EOS (prompts: preceded by BOS); [] for a text without tokens."""
    vocabulary, sources = tokenizer.target if prompts else tokenizer.source, []
    encoded = vocabulary.encode(texts)
    counts.unknown += vocabulary.unknown(text for text, ids in zip(texts, encoded, strict=True) if UNK in ids)
    if counts.rare is not None:
        counts.rare.update(rare_words(vocabulary, texts))
    for ids in encoded:
        counts.truncated += len(ids) >= max_length
        if ids:
            ids = [BOS, *ids[-max(1, max_length - 1) :]] if prompts else [*ids[: max_length - 1], EOS]
        sources.append(ids)
    return sources


def clamp_max_length(model: Model | Engine, spec: SearchConfig, max_source: int) -> SearchConfig:
    """Return the search with max_length limited by a decoder's positions after `max_source` tokens, for any batch."""
    if model.limit is None or model.shape != "decoder":
        return spec
    return spec.model_copy(update={"max_length": max(1, min(spec.max_length, model.limit - max_source))})


def search_all(
    model: Model | Engine,
    sources: Sequence[Sequence[int]],
    spec: SearchConfig,
    *,
    lines: Sequence[int],
    prompts: bool = False,
) -> list[list[Hypothesis]]:
    """Return the n best outputs of each source, in order; batches have sources of similar length.

    No source is empty. Each ends with EOS, but `prompts`, which outputs continue, begin with BOS instead.
    For `spec` see `translate`, for `lines` see `search`. Raises RecipeError, UsageError or DataError as `search`.
    """
    if not isinstance(model, Model):
        return model.search_all(sources, spec, lines=lines)
    answers: dict[int, list[Hypothesis]] = {}
    beams = spec.beam if spec.method == "beam" else spec.n_best
    device = model.output.weight.device
    # the ranks share the batches that a single process would have
    all_batches = batches([len(ids) for ids in sources], beams=beams, budget=spec.batch_tokens)
    for rows in islice(all_batches, group.rank(), None, group.world_size()):
        batch, first = [sources[row] for row in rows], None
        if prompts:
            first = pad([ids[-1:] for ids in batch], device)
            batch = [ids[:-1] for ids in batch]  # the first step reads the last token
        numbers = [lines[row] for row in rows]
        hypotheses = search(model, pad(batch, device), spec, lines=numbers, first=first)
        answers |= zip(rows, hypotheses, strict=True)
    parts = group.all_gather_object(answers)
    answers = {row: n_best for part in parts for row, n_best in part.items()}
    return [answers[row] for row in range(len(sources))]


def batches(lengths: Sequence[int], *, beams: int, budget: int) -> Iterator[list[int]]:
    """Yield batches as indices of sentences of similar length, longest first, equal lengths in order.

    A batch has at most `budget` tokens (sentences * beams * maximum source length) but at least one sentence. Longest
    first, so that a lack of memory shows at once.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        cost = beams * max(lengths[order[start]], MIN_SOURCE_LENGTH)
        size = max(1, budget // cost)
        size -= size % base.bucket_size(size)  # few sizes occur, so few matrix products are compiled
        yield order[start : start + size]
        start += size


def pad(rows: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "B S"]:
    """Return rows of ids as one tensor, padded on the right."""
    length = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (length - len(row))] for row in rows], device=device)


@torch.inference_mode()
def search(
    model: Model,
    source: Int[Tensor, "B S"],
    spec: SearchConfig,
    *,
    lines: Sequence[int],
    first: Int[Tensor, "B 1"] | None = None,
) -> list[list[Hypothesis]]:
    """Return the n best outputs of each sentence, best first: spec.n_best, or fewer if there are no more.

    The outputs of a sentence do not depend on the rest of the batch, up to rounding in matrix products. The model
    runs in evaluation mode; its mode is restored.

    Args:
        model: an encoder-decoder or a decoder.
        source: rows that end with EOS, padded with PAD on the right.
        lines: 0-based number of each sentence in the input, which seeds sampling and appears in messages.
        first: the token before each output; BOS by default. For a prompt: its last token, with the others as `source`.

    Raises:
        RecipeError: the method cannot return so many hypotheses.
        DataError: the model returns NaN, or has no position left for an output.
    """
    check_n_best(spec)
    if not len(source):
        return []
    training = model.training
    if training:
        model.eval()
    try:
        max_length = base.max_output_length(model, source, spec.max_length)
        ids = source.new_full((len(source), 1), BOS) if first is None else first
        predictor = FastDecoder.of(model) or model
        state = predictor.start(source, rows=len(source))
        method = beam_search if spec.method == "beam" else greedy_or_sample
        return method(predictor, state, ids, spec, max_length, lines)
    finally:
        if training:
            model.train()


def check_n_best(spec: SearchConfig) -> None:
    """Raise RecipeError if the method cannot return spec.n_best hypotheses."""
    key, text = spec.misfit
    if key == "n_best":
        raise RecipeError(f"search.{key}: {text}")
