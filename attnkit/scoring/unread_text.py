"""What the tokenizers of metrics lose of the references, and which others keep it."""

import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import regex

from attnkit.recipe.metrics import METRICS, PER_TOKENIZER, TextWords, base_metric, metric_facts
from attnkit.scoring.metrics.tokenizers import sacrebleu_metric
from attnkit.scoring.metrics.unicode_words import UNSPACED
from attnkit.text import answer_words

OF_TOKENIZER = [
    name for name, facts in METRICS.items()
    if facts.family in ("sacrebleu_scores", "meteor", "cider", "embedding", "diversity")
    and name not in ("chrf", "ter")
]  # fmt: skip
"""Metrics of the words that a tokenizer of BLEU cuts."""
OF_ANSWER_WORDS = ("answer-f1", "answer-contained", "context-found")
AT_SPACES = ("13a", "intl", "zh")
"""Tokenizers of BLEU that know no words of most unspaced scripts; char and the models cut all."""
LOST = 0.005
"""Share of letters from which ROUGE's loss is reported.  English test sets lose 0.1 % at most; the
German one of Multi30k loses 2 %, by which every tenth word is cut in two."""
UNCUT = 0.1
"""Share of letters in unspaced text from which it is more than names in text of another script."""
_ROUGE_READS = frozenset(string.ascii_lowercase + string.digits)
_RUNS = regex.compile(rf"(?V1)[[{UNSPACED}\p{{Tibetan}}]&&[\p{{L}}\p{{M}}\u0f0b]]{{2,}}")
_LANGUAGES = {
    "Japanese": r"\p{Hira}\p{Kana}", "Chinese": r"\p{Han}", "Thai": r"\p{Thai}",
    "Lao": r"\p{Lao}", "Khmer": r"\p{Khmer}", "Burmese": r"\p{Myanmar}",
    "Tibetan": r"\p{Tibetan}",
}  # fmt: skip
_KANA = 0.05
"""Share of kana in Chinese and Japanese characters from which a text is Japanese."""


class _Cutter(NamedTuple):
    """A tokenizer of some metrics."""

    metrics: list[str]
    name: str
    cut: Callable[[str], str]
    """Text with spaces between its words."""
    instead: Callable[[str], str]
    """What to use for a language."""


def unread_text(
    references: Sequence[Sequence[str]],
    metrics: Iterable[str],
    tokenizers: Sequence[str],
    words: TextWords,
) -> list[str]:
    """A line for each tokenizer that loses letters of the references, or leaves clauses uncut.

    It has the metrics, the share of letters and digits that they read as words, and what to use
    instead.  By the tokenizer `none` the references are split into words already.
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
            f"other letters: it keeps {_share(lost, total)} of the letters and digits of the "
            "references; use --words unicode (eval.words)"
        )
    runs = [(text, found) for text in texts if (found := _RUNS.findall(text))]
    for cutter in _cutters(names, tokenizers, words) if runs and "none" not in tokenizers else ():
        uncut = _uncut(runs, cutter.cut)
        if len(uncut) > UNCUT * total:
            language = _language(uncut)
            out.append(
                f"{_titles(cutter.metrics)}: {cutter.name} does not cut {language} into words: it "
                f"keeps {_share(len(uncut), total)} of the letters and digits of the references in "
                f"words; use {cutter.instead(language)}"
            )
    return out


def _cutters(
    names: Sequence[str], tokenizers: Sequence[str], words: TextWords
) -> Iterable[_Cutter]:
    """The tokenizers of these metrics that may leave unspaced scripts as they are."""
    for place, name in enumerate(tokenizers):
        of_words = PER_TOKENIZER if place else OF_TOKENIZER
        found = [metric for metric in names if metric in of_words]
        if found and name in AT_SPACES:
            cut = sacrebleu_metric("bleu", name).tokenizer
            yield _Cutter(found, f"tokenizer {name}", cut, _other_tokenizer)
    if "ter" in names:
        cut = sacrebleu_metric("ter", words=words).tokenizer
        yield _Cutter(["ter"], f"its tokenizer ({words})", cut, _other_than_ter(words))
    if (found := [name for name in names if name in OF_ANSWER_WORDS]) and words == "classic":
        yield _Cutter(
            found, "the classic tokenizer", lambda text: " ".join(answer_words(text)),
            lambda _: "--words unicode (eval.words)",
        )  # fmt: skip


def _other_tokenizer(language: str) -> str:
    also = {"Japanese": "ja-mecab or ", "Chinese": "zh or ", "Tibetan": "intl or "}
    return f"--tokenize {also.get(language, '')}char (eval.tokenize)"


def _other_than_ter(words: TextWords) -> Callable[[str], str]:
    def instead(language: str) -> str:
        cuts = words == "classic" and language in ("Chinese", "Japanese")
        return "--words unicode (eval.words)" if cuts else "chrF, which needs no words"

    return instead


def _uncut(runs: Sequence[tuple[str, Sequence[str]]], cut: Callable[[str], str]) -> str:
    """The letters of those runs of unspaced text that a tokenizer leaves whole."""
    whole = (
        (run for run in found if run in words) for text, found in runs for words in [cut(text)]
    )
    return "".join(run.replace("\u0f0b", "") for some in whole for run in some)


def _language(letters: str) -> str:
    """The language that most letters are of."""
    counts = {
        name: len(regex.findall(f"[{scripts}]", letters)) for name, scripts in _LANGUAGES.items()
    }
    if counts["Japanese"] > _KANA * (counts["Japanese"] + counts["Chinese"]):
        counts["Japanese"] += counts["Chinese"]
    return max(counts, key=lambda name: counts[name])


def _share(lost: int, total: int) -> str:
    return f"{100 * (total - lost) / total:.1f} %"


def _titles(names: Sequence[str]) -> str:
    return ", ".join(metric_facts(name).title for name in names)
