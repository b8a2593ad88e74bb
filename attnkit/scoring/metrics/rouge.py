"""ROUGE, by rouge-score, with its own tokenizer or a tokenizer for all scripts."""

import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.base import References, Score, reference_count
from attnkit.scoring.metrics.tokenizers import cached_stemmer, unicode_words

SENTENCE_END = re.compile("(?<=[.!?])\\s+|(?<=[\u3002\uff01\uff1f])\\s*")  # the latter: Chinese


def _tokenizer(classic: bool) -> Any:
    """Return a caching tokenizer: rouge-score's with the Porter stemmer (English only), or that for any script."""
    from rouge_score.tokenize import tokenize

    stemmer = cached_stemmer()
    cut = (lambda text: tokenize(text, stemmer)) if classic else unicode_words
    return SimpleNamespace(tokenize=cache(cut))


def scores(
    names: Sequence[str], hypotheses: Sequence[str], references: References, eval: EvalConfig
) -> dict[str, Score]:
    """Score each line by the F measure of its best reference; all but ROUGE-Lsum read a line end as a space."""
    from rouge_score.rouge_scorer import RougeScorer

    def cut(text: str) -> str:
        return SENTENCE_END.sub("\n", text) if eval.sentences == "punctuation" else text

    classic = eval.words == "classic"
    scorer = RougeScorer(list(names), tokenizer=_tokenizer(classic))
    rows = [
        scorer.score_multi([cut(reference) for reference in line], cut(text))
        for text, line in zip(hypotheses, references, strict=True)
    ]
    tail = f"version:rouge-score-{version('rouge-score')}"
    out = {}
    for name in names:
        sentences = [f"sentences:{eval.sentences}"] if name == "rougeLsum" else []
        parts = [f"nrefs:{reference_count(references)}", f"type:{name}", "measure:f", "refs:max"]
        words = "stemmer:yes" if classic else "stemmer:no|words:unicode"
        signature = "|".join([*parts, words, *sentences, tail])
        found = [row[name] for row in rows]
        # the score is computed from the first two columns; precision and recall are stored as details
        table = np.array([[one.fmeasure, 1.0, one.precision, one.recall] for one in found])
        out[name] = Score.of(name, table.reshape(-1, 4), signature)
    return out
