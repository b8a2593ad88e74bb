"""METEOR, by nltk (Lavie and Agarwal 2007, with alpha 0.9, beta 3 and gamma 0.5).

Words match by form, Porter stem or WordNet synonym, so METEOR is for English. The Java program METEOR 1.5 has other
weights and paraphrases: its scores cannot be compared with these.
"""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from attnkit.errors import UnavailableError
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.base import References, Score, reference_count
from attnkit.scoring.metrics.tokenizers import Words, cached_stemmer


def check(names: Sequence[str], eval: EvalConfig) -> None:
    """Raise UnavailableError without WordNet."""
    _wordnet()


def scores(
    names: Sequence[str], hypotheses: Sequence[str], references: References, eval: EvalConfig
) -> dict[str, Score]:
    """Score each line by its best reference."""
    from nltk.translate.meteor_score import meteor_score

    words, stemmer, wordnet = Words(eval, lowercase=True), cached_stemmer(), _wordnet()
    synonyms = SimpleNamespace(synsets=cache(wordnet.synsets))  # each word looked up once
    rows = [
        meteor_score([words.of(r) for r in line], words.of(text), stemmer=stemmer, wordnet=synonyms)
        for text, line in zip(hypotheses, references, strict=True)
    ]
    signature = (
        f"nrefs:{reference_count(references)}|refs:max|{words.signature}|stemmer:porter"
        f"|synonyms:wordnet-{wordnet.get_version()}|version:nltk-{version('nltk')}"
    )
    return {"meteor": Score.mean("meteor", rows, signature)}


def _wordnet() -> Any:
    from nltk.corpus import wordnet

    try:
        wordnet.ensure_loaded()
    except LookupError as error:
        raise UnavailableError(
            "meteor needs WordNet, which is not installed: run python -m nltk.downloader wordnet, or "
            "copy its folder into corpora/ of a folder in $NLTK_DATA (scoring never downloads)"
        ) from error
    except OSError as error:
        raise UnavailableError(f"meteor needs WordNet, and nltk's copy is damaged: {error}") from error
    return wordnet
