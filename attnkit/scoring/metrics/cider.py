"""CIDEr-D (Vedantam et al. 2015, "CIDEr: Consensus-based Image Description Evaluation", section 6).

Packages with CIDEr-D include Java archives or speech models, so it is implemented here; a test compares it with
pycocoevalcap. As in that program a sentence is an "image", all n-gram orders have equal weight, and the length penalty
has a standard deviation of six words.
"""

import math
from collections import Counter
from collections.abc import Sequence

from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.base import VERSION, References, Score, reference_count
from attnkit.scoring.metrics.tokenizers import Words, ngrams

ORDER = 4
SIGMA = 6.0
"""Standard deviation of the length penalty, in words."""
SCALE = 10.0
"""Factor of the paper; on the 0-100 scale a text that equals its references has 1000."""

Weights = list[dict[tuple[str, ...], float]]
"""TF-IDF weight of each n-gram, one dictionary per order."""


def scores(
    names: Sequence[str], hypotheses: Sequence[str], references: References, eval: EvalConfig
) -> dict[str, Score]:
    """Score each line by the mean over its references.

    Document frequencies are counted in the references of all lines, so the score of a line depends on the test set,
    and a single line scores 0. Bootstrap resamples keep these frequencies.
    """
    words = Words(eval, lowercase=True)

    def split(text: str) -> list[str]:
        return [word for word in words.of(text) if any(map(str.isalnum, word))]

    lines = [[split(reference) for reference in line] for line in references]
    frequency = Counter(ngram for line in lines for ngram in {ngram for text in line for ngram in _ngram_counts(text)})
    rows = []
    for text, line in zip(hypotheses, lines, strict=True):
        similarities = [similarity(split(text), reference, frequency, len(lines)) for reference in line]
        rows.append(SCALE * math.fsum(similarities) / len(line))
    signature = (
        f"nrefs:{reference_count(references)}|refs:mean|{words.signature}|punctuation:no|n:{ORDER}"
        f"|sigma:{SIGMA:g}|idf:references|{VERSION}"
    )
    return {"cider": Score.mean("cider", rows, signature)}


def similarity(
    text: Sequence[str], reference: Sequence[str], frequency: Counter[tuple[str, ...]], lines: int
) -> float:
    """Return the cosine of the TF-IDF vectors, averaged over n-gram orders, 0 to 1.

    Weights are clipped to those of the reference, and a different length is penalized.
    """
    weights = (_weights(words, frequency, lines) for words in (text, reference))
    total = 0.0
    for a, b in zip(*weights, strict=True):
        products = (min(a[ngram], b[ngram]) * b[ngram] for ngram in a.keys() & b)
        norms = math.hypot(*a.values()) * math.hypot(*b.values())
        total += math.fsum(products) / norms if norms else 0.0
    difference = len(text) - len(reference)
    return total / ORDER * math.exp(-(difference**2) / (2 * SIGMA**2))


def _weights(words: Sequence[str], frequency: Counter[tuple[str, ...]], lines: int) -> Weights:
    """Return TF-IDF weights; an n-gram that is in no reference has document frequency 1."""
    out: Weights = [{} for _ in range(ORDER)]
    for ngram, count in _ngram_counts(words).items():
        out[len(ngram) - 1][ngram] = count * math.log(lines / max(1, frequency[ngram]))
    return out


def _ngram_counts(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    return Counter(ngram for order in range(1, ORDER + 1) for ngram in ngrams(words, order))
