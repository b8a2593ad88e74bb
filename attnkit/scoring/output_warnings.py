"""Warnings about outputs whose score would mislead: empty, all equal, not detokenized, not read."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import regex

from attnkit.recipe.metrics import METRICS, TextWords, base_metric, metric_facts
from attnkit.scoring.metrics.tokenizers import UNSPACED

SUBWORD = re.compile("\u2581|@@( |$)|(^| )##\\w")
"""Marks that a sentencepiece, BPE or WordPiece model leaves on text that was not detokenized."""
SHARE = 0.1
"""Share of lines above which a property is that of the system, not of a few sentences."""
OF_TOKENIZER = [
    name for name, facts in METRICS.items()
    if facts.family in ("sacrebleu_scores", "meteor", "cider", "embedding", "diversity")
    and name not in ("chrf", "ter")
]  # fmt: skip
"""Metrics of the words that a tokenizer of BLEU cuts."""
OF_CLASSIC_WORDS = ("ter", "answer-f1", "answer-contained", "context-found")
AT_SPACES = ("13a", "intl")
"""Tokenizers of BLEU that know no words of unspaced scripts."""
LOST = 0.005
"""Share of letters from which ROUGE's loss is reported.  English test sets lose 0.1 % at most; the
German one of Multi30k loses 2 %, by which every tenth word is cut in two."""
UNCUT = 0.1
"""Share of letters in unspaced text from which it is more than names in text of another script."""
BY_UNICODE = "--words unicode (eval.words)"
BY_TOKENIZER = "--tokenize char, or zh for Chinese, ja-mecab for Japanese (eval.tokenize)"
_ROUGE_READS = frozenset(string.ascii_lowercase + string.digits)
_RUNS = regex.compile(rf"(?V1)[[{UNSPACED}\p{{Tibetan}}]&&[\p{{L}}\p{{M}}\u0f0b]]{{2,}}")


def warnings(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Iterable[str] = (),
    tokenizers: Sequence[str] = ("13a",),
    words: TextWords = "classic",
) -> list[str]:
    """What looks wrong about the outputs, one line each; empty where all is well.

    A mark that the first reference of the line carries as well is not reported.  Metrics that
    cannot read the references are named as by `unread_text`.
    """
    lines = len(hypotheses)
    first = [line[0] for line in references]
    out = []
    if empty := _more(lambda text: not text.strip(), hypotheses, first):
        out.append(share_text(empty, lines, "outputs", "is empty", "are empty"))
    if len(set(hypotheses)) == 1 < len(set(first)):
        out.append(f"all {lines} outputs are the same text")
    if marked := _more(lambda text: bool(SUBWORD.search(text)), hypotheses, first):
        found = share_text(marked, lines, "outputs", "has", "have")
        out.append(f"{found} subword marks (U+2581, @@ or ##): scores are for detokenized text")
    split = _more(lambda text: text.endswith(" ."), hypotheses, first)
    if split > SHARE * lines:
        found = share_text(split, lines, "outputs", "ends", "end")
        out.append(
            f"{found} in a separate full stop, unlike the references: scores are for detokenized "
            "text"
        )
    return out + unread_text(references, metrics, tokenizers, words)


def unread_text(
    references: Sequence[Sequence[str]],
    metrics: Iterable[str],
    tokenizers: Sequence[str],
    words: TextWords,
) -> list[str]:
    """A line for each tokenizer that loses letters of the references, or leaves clauses uncut.

    By the tokenizer `none` the references are split into words already.
    """
    names = list(dict.fromkeys(map(base_metric, metrics)))
    texts = [text for line in references for text in line]
    characters = Counter(character for text in texts for character in text.lower())
    letters = {c: n for c, n in characters.items() if unicodedata.category(c)[0] in "LMN"}
    total, out = sum(letters.values()), []
    rouge = [name for name in names if METRICS[name].family == "rouge"]
    lost = sum(number for letter, number in letters.items() if letter not in _ROUGE_READS)
    if rouge and words == "classic" and lost > LOST * total:
        out.append(
            f"{_titles(rouge)}: the classic tokenizer reads a-z and 0-9 only and cuts words at "
            f"other letters: it keeps {100 * (total - lost) / total:.1f} % of the letters and "
            f"digits of the references; use {BY_UNICODE}"
        )
    unspaced = sum(len(run) for text in texts for run in _RUNS.findall(text))
    if unspaced <= UNCUT * total or "none" in tokenizers:
        return out
    of_words = [name for name in names if name in OF_TOKENIZER and tokenizers[0] in AT_SPACES]
    classic = [name for name in names if name in OF_CLASSIC_WORDS and words == "classic"]
    told = ((of_words, f"tokenizer {tokenizers[0]}", BY_TOKENIZER),
            (classic, "the classic tokenizer", BY_UNICODE))  # fmt: skip
    for found, name, instead in told:
        if found:
            out.append(
                f"{_titles(found)}: {name} does not cut text without spaces into words, which "
                f"{100 * unspaced / total:.1f} % of the letters and digits of the references are "
                f"in; use {instead}"
            )
    return out


def _titles(names: Sequence[str]) -> str:
    return ", ".join(metric_facts(name).title for name in names)


def share_text(number: int, lines: int, what: str, one: str, several: str) -> str:
    """So many of all lines, and what they do: in the singular where it is one."""
    return f"{number} of {lines} {what} {one if number == 1 else several}"


def empty_references(references: Sequence[Sequence[str]]) -> int:
    """Lines of which a reference has no text."""
    return sum(not all(text.strip() for text in line) for line in references)


def _more(test: Callable[[str], bool], hypotheses: Sequence[str], references: Sequence[str]) -> int:
    """Hypotheses that pass a test which their reference does not pass."""
    return sum(
        test(text) and not test(reference)
        for text, reference in zip(hypotheses, references, strict=True)
    )
