"""BLEU, chrF, TER and the length ratio, by sacrebleu."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest

import numpy as np

from attnkit.recipe.metrics import PER_TOKENIZER
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.base import References, Score
from attnkit.scoring.metrics.tokenizers import ORDERS, check_tokenizer, sacrebleu_metric

MAX_CACHED_LINES = 10_000
"""Maximum number of lines whose references are cached with their n-grams, some kilobytes each."""
_cached_metric = lru_cache(maxsize=4)(sacrebleu_metric)


def check(names: Sequence[str], eval: EvalConfig) -> None:
    """Raise an error, as `check_tokenizer`, if a tokenizer cannot be used."""
    if set(names) - {"chrf", "ter"}:
        for tokenize in eval.tokenizers:
            check_tokenizer(tokenize)


def scores(
    names: Sequence[str], hypotheses: Sequence[str], references: References, eval: EvalConfig
) -> dict[str, Score]:
    """Score by each metric, and BLEU by each tokenizer (further ones as `bleu-intl`).

    The statistics are those that sacrebleu's own tests resample.
    """
    check(names, eval)
    streams = list(map(list, zip_longest(*references)))  # one list per reference: the r-th references of all lines
    out = {}
    first, *others = eval.tokenizers
    for name in names:
        tokenizers = {name: first}
        if name in PER_TOKENIZER:
            tokenizers |= {f"{name}-{other}": other for other in others}
        for title, tokenize in tokenizers.items():
            out[title] = _score(name, title, tokenize, hypotheses, streams, eval)
    return out


def _score(
    name: str,
    title: str,
    tokenize: str,
    hypotheses: Sequence[str],
    streams: Sequence[Sequence[str | None]],
    eval: EvalConfig,
) -> Score:
    if name == "ter":  # sacrebleu's normalization handles only one kind of space
        hypotheses = [" ".join(text.split()) for text in hypotheses]
        streams = [[text and " ".join(text.split()) for text in stream] for stream in streams]
    # cached, since compared systems have the same references
    create = _cached_metric if len(hypotheses) <= MAX_CACHED_LINES else sacrebleu_metric
    metric = create(name, tokenize, eval.lowercase, eval.words, tuple(map(tuple, streams)))
    statistics = np.asarray(metric._extract_corpus_statistics(hypotheses, None), np.float64)
    signature = metric.get_signature()
    if name in ORDERS:
        signature.update("order", ORDERS[name])
    if name == "length-ratio":  # BLEU's statistics begin with both lengths
        info = signature.info
        text = f"nrefs:{info['nrefs']}|tok:{info['tok']}|refs:closest|version:sacrebleu-{info['version']}"
        return Score.of(title, statistics[:, :2], text)
    return Score.of(title, statistics, str(signature))
