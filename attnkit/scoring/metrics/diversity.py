"""Diversity of outputs: distinct n-grams over all outputs, and repetition within each output."""

from collections.abc import Sequence

import numpy as np

from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.base import VERSION, References, Score, Statistics
from attnkit.scoring.metrics.tokenizers import Words, ngrams


def scores(
    names: Sequence[str], hypotheses: Sequence[str], references: References, eval: EvalConfig
) -> dict[str, Score]:
    """Score the outputs; references are ignored."""
    words = Words(eval, eval.lowercase)
    texts = [words.of(text) for text in hypotheses]
    out = {}
    for name in names:
        if name == "seq-rep-4":
            signature = f"unit:output|n:4|{words.signature}|{VERSION}"
            out[name] = Score.mean(name, [repetition(text) for text in texts], signature)
        else:
            order = int(name.removeprefix("distinct-"))
            signature = f"unit:corpus|n:{order}|per:word|{words.signature}|{VERSION}"
            out[name] = Score.of(name, distinct(texts, order), signature)
    return out


def distinct(texts: Sequence[Sequence[str]], order: int) -> Statistics:
    """Return for each text the number of n-grams that no previous text has, and the number of words: [texts, 2].

    Their sums are the number of distinct n-grams and the number of words, which is the denominator of Li et al. 2016
    ("A Diversity-Promoting Objective Function for Neural Conversation Models") for bigrams too. The rows depend on the
    order of the texts, so they cannot be resampled.
    """
    seen: set[tuple[str, ...]] = set()
    rows = []
    for text in texts:
        before = len(seen)
        seen.update(ngrams(text, order))
        rows.append([len(seen) - before, len(text)])
    return np.array(rows, np.float64)


def repetition(text: Sequence[str]) -> float:
    """Return 1 - distinct / all 4-grams of one text; 0 if it has none.

    Source: seq-rep-n of Welleck et al. 2020, "Neural Text Generation with Unlikelihood Training", section 6.
    """
    fourgrams = ngrams(text, 4)
    return 1 - len(set(fourgrams)) / len(fourgrams) if fourgrams else 0.0
