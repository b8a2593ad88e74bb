"""Warnings about misleading scores: outputs are empty, all equal or not detokenized, or a tokenizer loses text."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import regex

from attnkit.recipe.metrics import METRICS, ROUGE, base_metric, metric_facts
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.tokenizers import UNSPACED

SUBWORD = re.compile("\u2581|@@( |$)|(^| )##\\w")
"""Marks of sentencepiece, BPE or WordPiece in text that was not detokenized."""
SHARE = 0.1
"""Share of lines above which a property is reported: it is that of the system, not of a few sentences."""
NOT_SPLIT = (*ROUGE, "answer-match")
"""Metrics without a warning about unsplit clauses: ROUGE has its own, answer-match compares whole answers."""
SPACE_TOKENIZERS = ("13a", "intl")
"""BLEU tokenizers that do not split unspaced scripts into words."""
MAX_LOST = 0.005
"""Share of letters above which ROUGE's loss is reported. English test sets lose at most 0.1 %; that of Multi30k in
German loses 2 %, which splits every tenth word."""
MAX_UNSPACED = 0.1
"""Share of letters above which unspaced text is reported: less may be names within another script."""
BY_UNICODE = "--words unicode (eval.words)"
BY_TOKENIZER = "--tokenize char, or zh for Chinese, ja-mecab for Japanese (eval.tokenize)"
_ROUGE_READS = frozenset(string.ascii_lowercase + string.digits)
_RUNS = regex.compile(rf"(?V1)[[{UNSPACED}\p{{Tibetan}}]&&[\p{{L}}\p{{M}}\u0f0b]]{{2,}}")


def warnings(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], metrics: Iterable[str], eval: EvalConfig
) -> list[str]:
    """Return warnings about outputs, unless the first references have the same defect, and those of `unread_text`."""
    lines, first, out = len(hypotheses), [line[0] for line in references], []

    def count(test: Callable[[str], object]) -> int:
        """Return the number of outputs that pass a test that their reference does not pass."""
        return sum(bool(test(text)) and not test(reference) for text, reference in zip(hypotheses, first, strict=True))

    if empty := count(lambda text: not text.strip()):
        out.append(f"empty outputs: {empty} of {lines}")
    if len(set(hypotheses)) == 1 < len(set(first)):
        out.append(f"all {lines} outputs are the same text")
    advice = f"of {lines}; scores are for detokenized text"
    if marked := count(SUBWORD.search):
        out.append(f"outputs with subword marks (U+2581, @@ or ##): {marked} {advice}")
    if (split := count(lambda text: text.endswith(" ."))) > SHARE * lines:
        out.append(f"outputs with a separate full stop, unlike the references: {split} {advice}")
    return out + unread_text(references, metrics, eval)


def unread_text(references: Sequence[Sequence[str]], metrics: Iterable[str], eval: EvalConfig) -> list[str]:
    """Return a warning for each tokenizer that loses letters of the references, or leaves clauses unsplit.

    References for the tokenizer `none` are already split into words.
    """
    names, first = list(dict.fromkeys(map(base_metric, metrics))), eval.tokenizers[0]
    texts = [text for line in references for text in line]
    characters = Counter(character for text in texts for character in text.lower())
    letters = {c: n for c, n in characters.items() if unicodedata.category(c)[0] in "LMN"}
    total, out = sum(letters.values()), []

    def warn(names: Sequence[str], text: str, share: float, end: str) -> None:
        titles = ", ".join(metric_facts(name).title for name in names)
        percent = f"{100 * share:.1f} % of the letters and digits of the references"
        out.append(f"{titles}: {text} {percent}{end}")

    rouge = [name for name in names if METRICS[name].family == "rouge"]
    kept = sum(number for letter, number in letters.items() if letter in _ROUGE_READS)
    if rouge and eval.words == "classic" and total - kept > MAX_LOST * total:
        text = "the classic tokenizer keeps only a-z and 0-9 and splits words at other letters:"
        warn(rouge, text, kept / total, f" remain; use {BY_UNICODE}")
    unspaced = sum(len(run) for text in texts for run in _RUNS.findall(text))
    if unspaced <= MAX_UNSPACED * total or "none" in eval.tokenizers:
        return out
    for key, unsplit, tokenizer, advice in (
        ("tokenize", first in SPACE_TOKENIZERS, f"tokenizer {first}", BY_TOKENIZER),
        ("words", eval.words == "classic", "the classic tokenizer", BY_UNICODE),
    ):
        affected = [name for name in names if METRICS[name].cut_by == key and name not in NOT_SPLIT]
        if unsplit and affected:
            text = f"{tokenizer} does not split text without spaces into words, but"
            warn(affected, text, unspaced / total, f" are in such text; use {advice}")
    return out


def empty_references(references: Sequence[Sequence[str]]) -> int:
    """Return the number of lines with an empty reference."""
    return sum(not all(text.strip() for text in line) for line in references)
