"""ROUGE, by rouge-score."""

import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version

import numpy as np

from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.base import References, Score, reference_count
from attnkit.scoring.metrics.tokenizers import CachedStems

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


class StemmedWords:
    """rouge-score's own tokenization with the Porter stemmer, each text and word only once."""

    def __init__(self) -> None:
        from rouge_score import tokenize

        self.stem = CachedStems().stem
        self.tokenize = cache(lambda text: tokenize.tokenize(text, self))


def scores(
    names: Sequence[str], hypotheses: Sequence[str], references: References, eval: EvalConfig
) -> dict[str, Score]:
    """F measure of each line, the best over its references; the score is their mean.

    Sentences matter to ROUGE-Lsum alone; the other metrics read a line end as a space.
    """
    from rouge_score.rouge_scorer import RougeScorer

    def cut(text: str) -> str:
        return SENTENCE_END.sub("\n", text) if eval.sentences == "punctuation" else text

    scorer = RougeScorer(list(names), tokenizer=StemmedWords())
    rows = [
        scorer.score_multi([cut(reference) for reference in line], cut(text))
        for text, line in zip(hypotheses, references, strict=True)
    ]
    tail = f"version:rouge-score-{version('rouge-score')}"
    out = {}
    for name in names:
        sentences = [f"sentences:{eval.sentences}"] if name == "rougeLsum" else []
        parts = [f"nrefs:{reference_count(references)}", f"type:{name}", "measure:f", "refs:max"]
        signature = "|".join([*parts, "stemmer:yes", *sentences, tail])
        found = [row[name] for row in rows]
        # precision and recall are for details; the score is that of the first two columns
        table = np.array([[one.fmeasure, 1.0, one.precision, one.recall] for one in found])
        out[name] = Score.of(name, table.reshape(-1, 4), signature)
    return out
