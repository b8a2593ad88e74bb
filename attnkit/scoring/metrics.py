"""Metrics of text: BLEU, chrF and TER by sacrebleu, ROUGE by rouge-score, short answers.

A score is a function of summed per-sentence statistics (n-gram counts, edits, F values), so one
table of statistics gives the corpus score and every bootstrap resample of it.  All scores are on
the 0-100 scale but perplexity, and each carries a signature that says how it was computed.
Nothing is ever downloaded.

Source of answer-match and answer-f1: the evaluation script of SQuAD 1.1 (Rajpurkar et al. 2016,
"SQuAD: 100,000+ Questions for Machine Comprehension of Text"), whose numbers these equal: case,
punctuation and articles do not count, and of several references the best one does.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from attnkit import __version__
from attnkit.errors import DataError, UnavailableError, UsageError
from attnkit.recipe.schema import EvalConfig
from attnkit.text import answer_words, contains_answer, nearest, quoted

ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
TEXT = ("bleu", "chrf", "ter", *ROUGE, "bleu1", "bleu4", "exact-match",
        "answer-match", "answer-f1")  # fmt: skip
"""Metrics of output text."""
ORDERS = {"bleu1": 1, "bleu4": 4}
"""Longest n-grams, where the metric's name says them."""
CONTEXT = ("context-found",)
"""Metrics of the context that was chosen, in question answering."""
TEACHER_FORCED = ("accuracy", "perplexity", "word-perplexity")
"""Metrics of the model's probabilities while it reads the reference."""
TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none",
              "flores101", "flores200", "spBLEU-1K")  # fmt: skip
"""sacrebleu's tokenisers of BLEU; the last three need a sentencepiece model on disk."""

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
NORMALISED = f"norm:squad-1.1|version:attnkit-{__version__}"
"""End of the signatures of metrics of answers."""

Statistics = np.ndarray[tuple[int, int], np.dtype[np.float64]]


@dataclass(frozen=True)
class Score:
    """One metric of one system on one test set."""

    value: float
    """0-100, or the perplexity."""
    signature: str
    """How it was computed."""
    metric: str = field(repr=False)
    """Name of the metric: which function of the summed statistics is the score."""
    statistics: Statistics = field(repr=False, compare=False)
    """[sentences, k]: what the score is computed from, for the paired bootstrap."""

    @classmethod
    def of(cls, metric: str, statistics: Statistics, signature: str) -> "Score":
        """The score that statistics [sentences, k] give."""
        return cls(reducer(metric)(statistics.sum(0).tolist()), signature, metric, statistics)

    def json(self) -> dict[str, Any]:
        """Score and signature; a value that is not finite becomes null."""
        value = self.value if math.isfinite(self.value) else None
        return {"score": value, "signature": self.signature}


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Metric names in order, without repeats; `rouge` stands for the four ROUGE metrics.

    Raises:
        UsageError: a name is unknown.
    """
    known = (*TEXT, *CONTEXT, *TEACHER_FORCED)
    out: list[str] = []
    for name in names:
        if name != "rouge" and name not in known:
            raise _unknown(f"metric {name!r}", name, (*known, "rouge"))
        out.extend(ROUGE if name == "rouge" else (name,))
    return tuple(dict.fromkeys(out))


def _unknown(what: str, name: str, known: Sequence[str]) -> UsageError:
    near = nearest(name, known)
    hint = f"did you mean {near}? " if near else ""
    return UsageError(f"unknown {what}: {hint}choose from {', '.join(known)}")


def score(
    metrics: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    eval: EvalConfig,
) -> dict[str, Score]:
    """Score hypotheses against the references of each line (one or more, their number may vary).

    Metrics that need the model (`TEACHER_FORCED`) are left out.  Cost: about 0.3 s for 1,000
    sentences, TER several times that.

    Raises:
        DataError: the numbers of lines differ, or a line has no reference.
        UnavailableError: the tokeniser needs a package or a file that is not there.
        UsageError: unknown metric or tokeniser.
    """
    names = [name for name in expand(metrics) if name in TEXT]
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses)} hypotheses but {len(references)} lines of references: "
            "they must be line by line the same sentences"
        )
    if not hypotheses:
        raise DataError("nothing to score: there are no lines")
    if without := [number for number, line in enumerate(references, 1) if not line]:
        raise DataError(f"line {without[0]} has no reference: give at least one for each line")
    out: dict[str, Score] = {}
    if rouge := [name for name in names if name in ROUGE]:
        out = _rouge(rouge, hypotheses, references, eval.sentences)
    for name in names:
        if name in MEASURES:
            out[name] = _best_match(name, hypotheses, references)
        elif name not in ROUGE:
            out[name] = _sacrebleu(name, hypotheses, references, eval)
    return {name: out[name] for name in names}


@cache
def reducer(metric: str) -> Callable[[list[float]], float]:
    """The function from summed statistics to the score of a metric."""
    if metric in ("bleu", "bleu1", "bleu4", "chrf", "ter"):
        compute = _metric(metric, "none", False)._compute_score_from_stats
        return lambda sums: float(compute(sums).score)
    if metric in ("perplexity", "word-perplexity"):
        return lambda sums: math.exp(min(sums[0] / max(sums[1], 1), 700))
    return lambda sums: 100 * sums[0] / max(sums[1], 1)


def context_found(contexts: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """How many of the contexts that were chosen contain an answer, word by word."""
    pairs = zip(contexts, references, strict=True)
    statistics = np.array([[float(contains_answer(text, line)), 1.0] for text, line in pairs])
    return Score.of("context-found", statistics, f"context:decisive|refs:any|{NORMALISED}")


def _count(references: Sequence[Sequence[str]]) -> str:
    counts = {len(line) for line in references}
    return str(counts.pop()) if len(counts) == 1 else "var"


def _metric(name: str, tokenize: str, lowercase: bool) -> Any:
    """sacrebleu's metric; TER has tercom's settings, which never see case."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "chrf":
        return CHRF(lowercase=lowercase)
    if name == "ter":
        return TER()
    # force: the advice on tokenised text is ours (output_warnings), not sacrebleu's
    return BLEU(lowercase, force=True, tokenize=tokenize, max_ngram_order=ORDERS.get(name, 4))


def _sacrebleu(
    name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]], eval: EvalConfig
) -> Score:
    """BLEU, chrF and TER; the statistics are those that sacrebleu's own tests resample."""
    tokenize = _tokenizer(eval.tokenize) if name.startswith("bleu") else "none"
    metric = _metric(name, tokenize, eval.lowercase)
    streams = list(map(list, zip_longest(*references)))  # the r-th reference of each line
    statistics = metric._extract_corpus_statistics(hypotheses, streams)
    signature = metric.get_signature()
    if name in ORDERS:
        signature.update("order", ORDERS[name])
    return Score.of(name, np.asarray(statistics, dtype=np.float64), str(signature))


def _tokenizer(name: str) -> str:
    """Refuse a tokeniser that is unknown, not installed, or that sacrebleu would download."""
    if name not in TOKENIZERS:
        raise _unknown(f"tokenizer {quoted(name)}", name, TOKENIZERS)
    if name in ("ja-mecab", "ko-mecab"):
        try:
            _metric("bleu", name, False)
        except (ImportError, RuntimeError) as error:
            extra = f"sacrebleu[{name[:2]}]"
            raise UnavailableError(
                f"tokenizer {name} needs packages that are not installed: pip install '{extra}'"
            ) from error
    elif name in TOKENIZERS[-3:]:
        from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
        from sacrebleu.utils import SACREBLEU_DIR

        model = Path(SACREBLEU_DIR) / "models" / Path(SPM_MODELS[name]["url"]).name
        if not model.is_file():
            raise UnavailableError(
                f"tokenizer {name} needs the sentencepiece model {model}, which is not there: "
                f"download {SPM_MODELS[name]['url']} to it (scoring never downloads)"
            )
    return name


class _Words:
    """rouge-score's own tokenisation with the Porter stemmer, each text and word only once."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer  # type: ignore[import-untyped]
        from rouge_score import tokenize

        self.stem = cache(PorterStemmer().stem)
        self.tokenize = cache(lambda text: tokenize.tokenize(text, self))


def _rouge(
    names: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    sentences: str,
) -> dict[str, Score]:
    """F measure of each line, the best over its references; the score is their mean.

    Sentences matter to ROUGE-Lsum alone; the other metrics read a line end as a space.
    """
    from importlib.metadata import version

    from rouge_score.rouge_scorer import RougeScorer

    def cut(text: str) -> str:
        return SENTENCE_END.sub("\n", text) if sentences == "punctuation" else text

    scorer = RougeScorer(list(names), tokenizer=_Words())
    rows = [
        scorer.score_multi([cut(reference) for reference in line], cut(text))
        for text, line in zip(hypotheses, references, strict=True)
    ]
    tail = f"version:rouge-score-{version('rouge-score')}"
    out = {}
    for name in names:
        statistics = np.array([[row[name].fmeasure, 1.0] for row in rows])
        parts = [f"nrefs:{_count(references)}", f"type:{name}", "measure:f", "refs:max"]
        parts += ["stemmer:yes", *([f"sentences:{sentences}"] if name == "rougeLsum" else []), tail]
        out[name] = Score.of(name, statistics, "|".join(parts))
    return out


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
    "exact-match": lambda text, reference: float(text.strip() == reference.strip()),
}


def _best_match(name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Each line by the best of its references."""
    signature = f"refs:max|{NORMALISED}"
    if name == "exact-match":
        signature = f"nrefs:{_count(references)}|case:mixed|refs:any|version:attnkit-{__version__}"
    measure = MEASURES[name]
    pairs = zip(hypotheses, references, strict=True)
    rows = [[max(measure(text, reference) for reference in line), 1.0] for text, line in pairs]
    return Score.of(name, np.array(rows), signature)
