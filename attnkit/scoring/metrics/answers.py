"""Metrics of short answers and of whole lines that must be right.

Source of answer-match and answer-f1: the evaluation script of SQuAD 1.1 (Rajpurkar et al. 2016,
"SQuAD: 100,000+ Questions for Machine Comprehension of Text"), whose numbers these equal: case,
punctuation and articles do not count, and of several references the best one does.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.base import VERSION, References, Score, reference_count
from attnkit.text import answer_words, contains_answer

NORMALISED = f"norm:squad-1.1|{VERSION}"
"""End of the signatures of normalised answers."""


def answer_f1(answer: str, reference: str) -> float:
    """Harmonic mean of precision and recall of words, 0 to 1."""
    words, expected = answer_words(answer), answer_words(reference)
    common = (Counter(words) & Counter(expected)).total()
    return 2 * common / (len(words) + len(expected)) if common else 0.0


def answer_match(answer: str, reference: str) -> float:
    """1 where both are the same answer."""
    return float(answer_words(answer) == answer_words(reference))


MEASURES: dict[str, Callable[[str, str], float]] = {
    "answer-match": answer_match,
    "answer-f1": answer_f1,
    "answer-contained": lambda answer, reference: float(contains_answer(answer, [reference])),
    "exact-match": lambda text, reference: float(text.strip() == reference.strip()),
}


def scores(
    names: Sequence[str], hypotheses: Sequence[str], references: References, eval: EvalConfig
) -> dict[str, Score]:
    """Each line by the best of its references."""
    out = {}
    for name in names:
        signature = f"refs:max|{NORMALISED}"
        if name == "exact-match":
            signature = f"nrefs:{reference_count(references)}|case:mixed|refs:any|{VERSION}"
        measure, pairs = MEASURES[name], zip(hypotheses, references, strict=True)
        best = [max(measure(text, reference) for reference in line) for text, line in pairs]
        out[name] = Score.mean(name, best, signature)
    return out


def context_found(contexts: Sequence[str], references: References) -> Score:
    """How many of the contexts that were chosen contain an answer, word by word."""
    pairs = zip(contexts, references, strict=True)
    found = [float(contains_answer(text, line)) for text, line in pairs]
    return Score.mean("context-found", found, f"context:decisive|refs:any|{NORMALISED}")
