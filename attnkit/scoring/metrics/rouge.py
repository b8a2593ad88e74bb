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
    """Return a caching tokenizer: rouge-score's with the Porter stemmer (for English), or `unicode_words` without."""
    from rouge_score.tokenize import tokenize

    stemmer = cached_stemmer()
    return SimpleNamespace(tokenize=cache((lambda text: tokenize(text, stemmer)) if classic else unicode_words))


def scores(
    names: Sequence[str], hypotheses: Sequence[str], references: References, eval: EvalConfig
) -> dict[str, Score]:
    """Score each line by the F measure of its best reference; all but ROUGE-Lsum read a line end as a space."""
    from rouge_score.rouge_scorer import RougeScorer

    def split(text: str) -> str:
        return SENTENCE_END.sub("\n", text) if eval.sentences == "punctuation" else text

    classic = eval.words == "classic"
    scorer = RougeScorer(list(names), tokenizer=_tokenizer(classic))
    rows = [
        scorer.score_multi([split(reference) for reference in line], split(text))
        for text, line in zip(hypotheses, references, strict=True)
    ]
    words = "stemmer:yes" if classic else "stemmer:no|words:unicode"
    out = {}
    for name in names:
        sentences = f"|sentences:{eval.sentences}" if name == "rougeLsum" else ""
        signature = (
            f"nrefs:{reference_count(references)}|type:{name}|measure:f|refs:max|{words}{sentences}"
            f"|version:rouge-score-{version('rouge-score')}"
        )
        # the score is computed from the first two columns; precision and recall are stored as details
        table = [[row[name].fmeasure, 1.0, row[name].precision, row[name].recall] for row in rows]
        out[name] = Score.of(name, np.array(table).reshape(-1, 4), signature)
    return out
