"""Comparison of an exported model with its run on lines of a corpus."""

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from attnkit.data.objectives import MASK
from attnkit.data.rows import Row
from attnkit.data.tokenizer import BOS, EOS, PAD, Tokenizer, control
from attnkit.models import Model
from attnkit.recipe import Recipe
from attnkit.recipe.metrics import metric_facts
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics import score
from attnkit.search import LineCounts, translate
from attnkit.search.decoding import Engine, encode_lines, pad
from attnkit.search.labels import classify
from attnkit.text import RESERVED

LINES, BATCH_SIZE = 200, 25
"""Number of compared lines, in total and per batch."""
MAX_DIFFERENCE = 1e-4
"""Maximum difference of logits or log-probabilities."""
MIN_EQUAL = 0.98
"""Minimum share of equal outputs; below 1, because rounding decides between hypotheses of equal score."""
PROMPT_WORDS = 12
"""Number of words at the start of a line of running text that are the prompt."""

Batch = tuple[Int[Tensor, "B S"] | None, Int[Tensor, "B T"] | None]
"""Arguments of `Model.forward`, padded on the right; each row ends with EOS."""


class Reader(NamedTuple):
    """Functions of an opened export; None if it lacks a function."""

    outputs: Callable[[Recipe, Sequence[str]], Iterable[str]] | None
    """Function that returns the best output of each text by the search of a recipe."""
    logits: Callable[[Tensor | None, Tensor | None], Tensor] | None = None
    """Function like `Model.forward`."""
    log_probs: Callable[[Tensor, Tensor], Tensor] | None = None
    """Function that returns the log-probabilities of all target tokens, concatenated, for sources and targets."""
    encode: Callable[[Sequence[str]], list[list[int]]] | None = None
    """Function that returns the ids of each text."""
    bans: bool = True
    """Whether tokens banned by min_length and no_repeat_ngram are masked after normalization, as by attnkit. If not,
    outputs differ, and are compared without these settings."""
    exact: bool = True
    """False for quantized weights: differences are reported but do not fail."""


class Agreement(NamedTuple):
    """One comparison."""

    check: str
    found: str
    needed: str
    passed: bool


def compare(
    model: Model, tokenizer: Tokenizer, recipe: Recipe, reader: Reader, rows: Sequence[Row]
) -> Iterator[Agreement]:
    """Compare a model with its export on rows with text: token ids, logits, outputs and their scores."""
    if not reader.bans:
        unbanned = recipe.search.model_copy(update={"min_length": 0, "no_repeat_ngram": 0})
        recipe = recipe.model_copy(update={"search": unbanned})
    texts = [row.source or " ".join(row.target.split()[:PROMPT_WORDS]) for row in rows]
    max_length, decoder = recipe.data.max_length, recipe.model.shape == "decoder"
    sources = encode_lines(tokenizer, texts, max_length, LineCounts(), prompts=recipe.prompts)
    if reader.encode is not None:
        odd = odd_lines(tokenizer)
        odd_ids = encode_lines(tokenizer, odd, max_length, LineCounts(), prompts=recipe.prompts)
        empty = [BOS] if recipe.prompts else [EOS]  # ids of a line without text
        suffix = [BOS] if decoder and not recipe.prompts else []
        expected = [[*(ids or empty), *suffix] for ids in (*sources, *odd_ids)]
        yield _equal("tokenizer ids equal, edge cases included", expected, reader.encode([*texts, *odd]), 1.0)
    targets = tokenizer.target.encode([row.target for row in rows])
    targets = [[BOS, *ids[: max_length - 1], EOS] for ids in targets]
    difference = max(_difference(model, reader, *batch) for batch in _batches(recipe, sources, targets))
    needed = f"at most {MAX_DIFFERENCE:.0e}" if reader.exact else "-"
    check = f"{'logits' if reader.logits else 'log-probabilities'}, largest difference"
    yield Agreement(check, f"{difference:.1e}", needed, not reader.exact or difference <= MAX_DIFFERENCE)
    if reader.outputs is None:
        return
    ours = list(outputs(model, tokenizer, recipe, texts))
    theirs = list(reader.outputs(recipe, texts))
    yield _equal("outputs equal", ours, theirs, MIN_EQUAL if reader.exact else 0.0)
    references = [row.references or (row.target,) for row in rows]
    for name in () if recipe.prompts or recipe.data.labels else ("bleu", "chrf"):
        a, b = (score([name], lines, references, EvalConfig())[name] for lines in (ours, theirs))
        title = f"{metric_facts(name).title} of run and export"
        yield Agreement(title, f"{a.value:.2f} {b.value:.2f}", "-", True)


def odd_lines(tokenizer: Tokenizer) -> list[str]:
    """Return edge cases of tokenization: control tokens, symbols in words, normal forms, graphemes, empty, long."""
    names = (*RESERVED, *tokenizer.source.symbols, MASK, control(RESERVED[EOS]))
    return [
        *(form.format(name) for name in names for form in ("a {} b", "a{}b", "{0}{0}", "{} ")),
        unicodedata.normalize("NFD", "Gr\u00f6\u00dfe d\u00e9j\u00e0 \uac00") + " \ufb01 \u03a9 \u00bd",
        "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",  # a family joined by ZWJ, and a flag
        "<0x41><0x0A> <0xE2>",  # spelled like byte pieces
        "",
        " \u00a0\u3000",
        "a\0b \u2585 \u2581 \ufdd0 \ufeff \u200b \u2028 c",
        "ab " * 1700,
    ]


def outputs(model: Model | Engine, tokenizer: Tokenizer, recipe: Recipe, texts: Sequence[str]) -> Iterator[str]:
    """Yield the best output of each text by attnkit's search (greedy for sampling), or the likeliest label."""
    search, max_source = recipe.search, recipe.data.max_length
    if isinstance(model, Model) and model.shape == "encoder":
        results = classify(
            model, tokenizer, texts, recipe.data.labels, max_source=max_source, batch_tokens=search.batch_tokens
        )
    else:
        method = "greedy" if search.method == "sample" else search.method
        spec = search.model_copy(update={"method": method, "n_best": 1})
        results = translate(model, tokenizer, texts, spec, max_source=max_source, prompts=recipe.prompts)
    yield from (answers[0][0] for answers in results)


def _batches(recipe: Recipe, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> Iterator[Batch]:
    """Yield batches of the sources and targets, then of random tokens with minimum and maximum length."""
    for start in range(0, len(sources), BATCH_SIZE):
        batch = slice(start, start + BATCH_SIZE)
        yield _batch(recipe, sources[batch], targets[batch])
    generator = torch.Generator().manual_seed(1)
    highs = [max(EOS + 2, *map(max, side)) for side in (sources, targets)]
    for tokens in (2, max(2, recipe.data.max_length)):
        size = (2, tokens - 1)
        drawn = (torch.randint(EOS + 1, high, size, generator=generator).tolist() for high in highs)
        source, target = ([[*ids, EOS] for ids in rows] for rows in drawn)
        yield _batch(recipe, source, [[BOS, *ids] for ids in target])


def _batch(recipe: Recipe, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> Batch:
    shape, device = recipe.model.shape, torch.device("cpu")
    if shape == "decoder":
        joined = [[*a, *b] for a, b in zip(sources, targets, strict=True)]
        return None, pad(targets if recipe.prompts else joined, device)
    return pad(sources, device), None if shape == "encoder" else pad(targets, device)


@torch.inference_mode()
def _difference(model: Model, reader: Reader, source: Tensor | None, ids: Tensor | None) -> float:
    """Compute the maximum difference of logits, or of target log-probabilities, pads excluded."""
    logits: Tensor = model(source, ids)
    if reader.logits is not None:
        tokens = source if ids is None else ids
        assert tokens is not None
        differences = (reader.logits(source, ids) - logits).abs().amax(-1)
        return float(differences[(tokens != PAD)[:, : differences.shape[1]]].max())
    assert reader.log_probs is not None
    assert source is not None
    assert ids is not None
    ours = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return float((reader.log_probs(source, ids) - ours[ids[:, 1:] != PAD]).abs().max())


def _equal(name: str, ours: Sequence[Any], theirs: Sequence[Any], share: float) -> Agreement:
    """Compare two lists; passes if at least `share` of the items are equal."""
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    minimum = math.ceil(share * len(ours))
    needed = f"at least {minimum}" if share else "-"
    return Agreement(name, f"{equal} of {len(ours)}", needed, equal >= minimum)
