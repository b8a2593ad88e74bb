"""Metrics of short answers, and exact match of whole lines.

Source of answer-match and answer-f1: the evaluation script of SQuAD 1.1 (Rajpurkar et al. 2016, "SQuAD: 100,000+
Questions for Machine Comprehension of Text"), with the same results: case, punctuation and articles are ignored, and
the best of several references counts. With `eval.words` "unicode", punctuation of all scripts is ignored and
characters of unspaced scripts are words, as in the evaluation script of MLQA (Lewis et al. 2020, "MLQA: Evaluating
Cross-lingual Extractive Question Answering") for Chinese.

`data.text_form.clean` normalizes white space of outputs and references.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import regex

from attnkit.data.text_form import clean
from attnkit.recipe.metrics import TextWords
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.base import VERSION, References, Score, reference_count
from attnkit.scoring.metrics.tokenizers import split_unspaced
from attnkit.text import answer_words, contains_answer

Split = Callable[[str], list[str]]
_PUNCTUATION = regex.compile(r"\p{P}+")
_SEPARATORS = regex.compile("[\u0f0b-\u0f14\u200b]+")
"""Marks between Tibetan syllables, and the zero-width space between words of other scripts."""


def unicode_answer_words(text: str) -> list[str]:
    """Return the words of an answer in any script; characters are words in unspaced scripts."""
    spaced = _PUNCTUATION.sub("", _SEPARATORS.sub(" ", text))
    return split_unspaced(" ".join(answer_words(spaced)))


SPLITS: dict[TextWords, Split] = {"classic": answer_words, "unicode": unicode_answer_words}
"""Functions that split answers into words, by `eval.words`."""


def answer_f1(answer: str, reference: str, split: Split = answer_words) -> float:
    """Return the harmonic mean of precision and recall of words, 0 to 1."""
    words, expected = split(answer), split(reference)
    common = (Counter(words) & Counter(expected)).total()
    return 2 * common / (len(words) + len(expected)) if common else 0.0


def answer_match(answer: str, reference: str, split: Split = answer_words) -> float:
    """Return 1 if both are the same answer, otherwise 0."""
    return float(split(answer) == split(reference))


MEASURES: dict[str, Callable[[str, str, Split], float]] = {
    "answer-match": answer_match,
    "answer-f1": answer_f1,
    "answer-contained": lambda answer, reference, split: contains_answer(answer, [reference], split),
    "exact-match": lambda answer, reference, _: float(answer == reference),
}


def scores(
    names: Sequence[str], hypotheses: Sequence[str], references: References, eval: EvalConfig
) -> dict[str, Score]:
    """Score each line by its best reference."""
    pairs = [
        (clean(text), [clean(reference) for reference in line])
        for text, line in zip(hypotheses, references, strict=True)
    ]
    out, split = {}, SPLITS[eval.words]
    for name in names:
        signature = f"refs:max|{_normalized(eval.words)}"
        if name == "exact-match":
            signature = f"nrefs:{reference_count(references)}|case:mixed|refs:any|{VERSION}"
        measure = MEASURES[name]
        best = [max(measure(text, reference, split) for reference in line) for text, line in pairs]
        out[name] = Score.mean(name, best, signature)
    return out


def context_found(contexts: Sequence[str], references: References, words: TextWords = "classic") -> Score:
    """Return the percentage of selected contexts that contain a reference answer, compared word by word."""
    split = SPLITS[words]
    found = [float(contains_answer(text, line, split)) for text, line in zip(contexts, references, strict=True)]
    return Score.mean("context-found", found, f"context:decisive|refs:any|{_normalized(words)}")


def _normalized(words: TextWords) -> str:
    """Return the end of the signatures of metrics that normalize answers."""
    return f"norm:squad-1.1|{'' if words == 'classic' else f'words:{words}|'}{VERSION}"
