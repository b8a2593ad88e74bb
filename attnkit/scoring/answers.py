"""Short answers to questions: exact match, F1, and whether the right context was chosen.

Source: the evaluation script of SQuAD 1.1 (Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for
Machine Comprehension of Text"), whose numbers these equal: case, punctuation and articles do not
count, and of several references the best one does.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from attnkit import __version__
from attnkit.text import answer_words, contains_answer

Statistics = np.ndarray[tuple[int, int], np.dtype[np.float64]]

NORMALISED = f"norm:squad-1.1|version:attnkit-{__version__}"
"""End of the signatures."""


def f1(answer: str, reference: str) -> float:
    """Harmonic mean of precision and recall of words, 0 to 1."""
    said, wanted = answer_words(answer), answer_words(reference)
    common = (Counter(said) & Counter(wanted)).total()
    return 2 * common / (len(said) + len(wanted)) if common else 0.0


def match(answer: str, reference: str) -> float:
    """1 where both are the same answer."""
    return float(answer_words(answer) == answer_words(reference))


MEASURES: dict[str, Callable[[str, str], float]] = {"answer-match": match, "answer-f1": f1}
"""Metrics of the text of an answer."""


def best_of(name: str, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Statistics:
    """[lines, 2]: each answer against the best of its references, and 1."""
    measure = MEASURES[name]
    pairs = zip(answers, references, strict=True)
    return np.array([[max(measure(text, other) for other in line), 1.0] for text, line in pairs])


def found(contexts: Sequence[str], references: Sequence[Sequence[str]]) -> Statistics:
    """[lines, 2]: whether the chosen context contains an answer, word by word, and 1."""
    pairs = zip(contexts, references, strict=True)
    return np.array([[float(contains_answer(text, line)), 1.0] for text, line in pairs])
