"""sacrebleu's metrics, its BLEU tokenizers (other metrics use them too), and words of any script."""

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
"""sacrebleu's BLEU tokenizers; the last three need a sentencepiece model on disk."""
ORDERS = {"bleu1": 1, "bleu4": 4}
"""Maximum n-gram order, if the metric's name contains it."""


def check_tokenizer(name: str) -> None:
    """Raise UsageError if a tokenizer is unknown, UnavailableError if its package or model is not installed.

    sacrebleu would download a missing model.
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
                f"tokenizer {name} needs the sentencepiece model {model}, which does not exist: download "
                f"{SPM_MODELS[name]['url']} to this path (scoring never downloads)"
            )


def sacrebleu_metric(
    name: str, tokenize: str = "none", lowercase: bool = False, words: TextWords = "classic", references: Any = None
) -> Any:
    """Return sacrebleu's metric; `references` (list r: the r-th references of all lines) are processed once.

    TER has tercom's settings, which ignore case. With `words` "unicode", TER separates punctuation from words, and
    splits Chinese into characters.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "chrf":
        return CHRF(lowercase=lowercase, references=references)
    if name == "ter":
        unicode = words == "unicode"
        return TER(normalized=unicode, asian_support=unicode, references=references)
    # force=True: output_warnings warns of tokenized text, not sacrebleu
    return BLEU(lowercase, force=True, tokenize=tokenize, max_ngram_order=ORDERS.get(name, 4), references=references)


def ngrams(words: Sequence[str], order: int) -> list[tuple[str, ...]]:
    """Return the n-grams of a text in order."""
    return [tuple(words[i : i + order]) for i in range(len(words) - order + 1)]


def cached_stemmer() -> Any:
    """Return a Porter stemmer that caches its results."""
    from nltk.stem.porter import PorterStemmer

    return SimpleNamespace(stem=cache(PorterStemmer().stem))


class Words:
    """Texts split into words by the first tokenizer of `eval.tokenize`; raises errors as `check_tokenizer`."""

    def __init__(self, eval: EvalConfig, lowercase: bool) -> None:
        check_tokenizer(eval.tokenizers[0])
        tokenizer = sacrebleu_metric("bleu", eval.tokenizers[0]).tokenizer
        self.signature = f"case:{'lc' if lowercase else 'mixed'}|tok:{tokenizer.signature()}"

        def split(text: str) -> list[str]:
            words: list[str] = tokenizer((text.lower() if lowercase else text).rstrip()).split()
            return words

        self.of: Callable[[str], list[str]] = cache(split)


UNSPACED = r"\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
"""Scripts without spaces between words, for a character class of `regex`."""
_CHARACTER = rf"[[{UNSPACED}]&&\p{{L}}]"
_PIECES = regex.compile(rf"(?V1){_CHARACTER}\p{{M}}*|[^\s{_CHARACTER}]+")
_NO_WORD = regex.compile("[^\\p{L}\\p{M}\\p{N}\u200c\u200d]+")  # joiners are part of spellings


def split_unspaced(text: str) -> list[str]:
    """Split a text at white space, and text in unspaced scripts into characters with their combining marks."""
    return list(_PIECES.findall(text))


def unicode_words(text: str) -> list[str]:
    """Return the words in lower case, without punctuation and symbols."""
    return split_unspaced(_NO_WORD.sub(" ", text.lower()))
