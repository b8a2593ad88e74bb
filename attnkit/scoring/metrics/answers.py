"""Metrics of short answers and of whole lines that must be right.

Source of answer-match and answer-f1: the evaluation script of SQuAD 1.1 (Rajpurkar et al. 2016, "SQuAD: 100,000+
Questions for Machine Comprehension of Text"), whose numbers these equal: case, punctuation and articles do not count,
and of several references the best one does. By `words` of unicode, punctuation is that of all scripts and characters
of unspaced scripts are words, as in the evaluation script of MLQA (Lewis et al. 2020, "MLQA: Evaluating Cross-lingual
Extractive Question Answering"), which does so for Chinese.

White space is that of `data.tokenizer.clean` on both sides.
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

Cut = Callable[[str], list[str]]
_PUNCTUATION = regex.compile(r"\p{P}+")
_BETWEEN = regex.compile("[\u0f0b-\u0f14\u200b]+")
"""Marks between Tibetan syllables, and the invisible space between words of other scripts."""


def unicode_answer_words(text: str) -> list[str]:
    """The words of an answer in any script; characters where there are no spaces between words."""
    spaced = _PUNCTUATION.sub("", _BETWEEN.sub(" ", text))
    return split_unspaced(" ".join(answer_words(spaced)))


CUTS: dict[TextWords, Cut] = {"classic": answer_words, "unicode": unicode_answer_words}
"""How answers become words, by `eval.words`."""


def answer_f1(answer: str, reference: str, cut: Cut = answer_words) -> float:
    """Harmonic mean of precision and recall of words, 0 to 1."""
    words, expected = cut(answer), cut(reference)
    common = (Counter(words) & Counter(expected)).total()
    return 2 * common / (len(words) + len(expected)) if common else 0.0


def answer_match(answer: str, reference: str, cut: Cut = answer_words) -> float:
    """1 where both are the same answer."""
    return float(cut(answer) == cut(reference))


MEASURES: dict[str, Callable[[str, str, Cut], float]] = {
    "answer-match": answer_match,
    "answer-f1": answer_f1,
    "answer-contained": lambda answer, expected, cut: contains_answer(answer, [expected], cut),
    "exact-match": lambda text, reference, _: float(text == reference),
}


def scores(
    names: Sequence[str], hypotheses: Sequence[str], references: References, eval: EvalConfig
) -> dict[str, Score]:
    """Each line by the best of its references."""
    pairs = [
        (clean(text), [clean(reference) for reference in line])
        for text, line in zip(hypotheses, references, strict=True)
    ]
    out, cut = {}, CUTS[eval.words]
    for name in names:
        signature = f"refs:max|{_normalised(eval.words)}"
        if name == "exact-match":
            signature = f"nrefs:{reference_count(references)}|case:mixed|refs:any|{VERSION}"
        measure = MEASURES[name]
        best = [max(measure(text, reference, cut) for reference in line) for text, line in pairs]
        out[name] = Score.mean(name, best, signature)
    return out


def context_found(contexts: Sequence[str], references: References, words: TextWords = "classic") -> Score:
    """How many of the contexts that were chosen contain an answer, word by word."""
    found = [float(contains_answer(text, line, CUTS[words])) for text, line in zip(contexts, references, strict=True)]
    return Score.mean("context-found", found, f"context:decisive|refs:any|{_normalised(words)}")


def _normalised(words: TextWords) -> str:
    """End of the signatures of normalised answers."""
    return f"norm:squad-1.1|{'' if words == 'classic' else f'words:{words}|'}{VERSION}"
