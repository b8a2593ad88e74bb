"""sacrebleu's metrics, the tokenizers of its BLEU, which cut the words of other metrics too, and
words of any script."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import regex

from attnkit.errors import UnavailableError, UsageError
from attnkit.recipe.metrics import BleuTokenizer, TextWords
from attnkit.recipe.schema import EvalConfig
from attnkit.text import hint, quoted

TOKENIZERS: tuple[str, ...] = get_args(BleuTokenizer)
"""sacrebleu's tokenizers of BLEU; the last three need a sentencepiece model on disk."""
ORDERS = {"bleu1": 1, "bleu4": 4}
"""Longest n-grams, where the metric's name says them."""


def check_tokenizer(name: str) -> None:
    """Refuse a tokenizer that is unknown, not installed, or that sacrebleu would download.

    Raises:
        UsageError: it is unknown.
        UnavailableError: its package or its model is not there.
    """
    if name not in TOKENIZERS:
        raise UsageError(f"unknown tokenizer {quoted(name)}: {hint(name, TOKENIZERS)}")
    if name in ("ja-mecab", "ko-mecab"):
        try:
            sacrebleu_metric("bleu", name, False)
        except (ImportError, RuntimeError) as error:
            raise UnavailableError(
                f"tokenizer {name} needs packages that are not installed: pip install "
                f"'attnkit[{name[:2]}]', or choose char (eval.tokenize, --tokenize)"
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


def sacrebleu_metric(
    name: str, tokenize: str = "none", lowercase: bool = False, words: TextWords = "classic", references: Any = None
) -> Any:
    """sacrebleu's metric; `references`, a list for the first of each line and so on, are read once.

    TER has tercom's settings, which never see case.

    By `words` of unicode TER splits punctuation from words, and Chinese into characters.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "chrf":
        return CHRF(lowercase=lowercase, references=references)
    if name == "ter":
        unicode = words == "unicode"
        return TER(normalized=unicode, asian_support=unicode, references=references)
    # force: the advice on tokenized text is ours (output_warnings), not sacrebleu's
    return BLEU(lowercase, force=True, tokenize=tokenize, max_ngram_order=ORDERS.get(name, 4), references=references)


def ngrams(words: Sequence[str], order: int) -> list[tuple[str, ...]]:
    """The n-grams of a text in their order."""
    return [tuple(words[at : at + order]) for at in range(len(words) - order + 1)]


def cached_stemmer() -> Any:
    """The Porter stemmer, each word stemmed once."""
    from nltk.stem.porter import PorterStemmer

    return SimpleNamespace(stem=cache(PorterStemmer().stem))


class Words:
    """Texts as words, cut by the first tokenizer of `eval.tokenize`.

    Raises UsageError, UnavailableError: as `check_tokenizer`.
    """

    def __init__(self, eval: EvalConfig, lowercase: bool) -> None:
        check_tokenizer(eval.tokenizers[0])
        tokenizer = sacrebleu_metric("bleu", eval.tokenizers[0]).tokenizer
        self.signature = f"case:{'lc' if lowercase else 'mixed'}|tok:{tokenizer.signature()}"

        def cut(text: str) -> list[str]:
            words: list[str] = tokenizer((text.lower() if lowercase else text).rstrip()).split()
            return words

        self.of: Callable[[str], list[str]] = cache(cut)


UNSPACED = r"\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
"""Scripts without spaces between words, for a set of `regex`."""
_CHARACTER = rf"[[{UNSPACED}]&&\p{{L}}]"
_PIECES = regex.compile(rf"(?V1){_CHARACTER}\p{{M}}*|[^\s{_CHARACTER}]+")
_NO_WORD = regex.compile("[^\\p{L}\\p{M}\\p{N}\u200c\u200d]+")  # joiners are part of spellings


def split_unspaced(text: str) -> list[str]:
    """A text cut at white space, and into characters, each with its marks, in such scripts."""
    return list(_PIECES.findall(text))


def unicode_words(text: str) -> list[str]:
    """The words in lower case, without punctuation and symbols."""
    return split_unspaced(_NO_WORD.sub(" ", text.lower()))
