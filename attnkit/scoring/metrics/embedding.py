"""Embedding average, greedy matching and vector extrema, from word vectors that the user gives.

Source: Liu et al. 2016, "How NOT To Evaluate Your Dialogue System", section 3.2, with greedy
matching of Rus and Lintean 2012 and vector extrema of Forgues et al. 2014.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from attnkit.errors import DataError, MissingInputError, UsageError
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.base import VERSION, References, Score, reference_count
from attnkit.scoring.metrics.tokenizers import Words, check_tokenizer
from attnkit.scoring.metrics.word_vectors import Matrix, Vector, WordVectors, check_vectors


def check(names: Sequence[str], eval: EvalConfig) -> None:
    """Read the file of vectors once.  Raises as `check_vectors` and `check_tokenizer`.

    Raises:
        UsageError: none is given.
    """
    check_tokenizer(eval.tokenizers[0])
    try:
        check_vectors(_path(names, eval))
    except MissingInputError as error:
        raise MissingInputError(f"word vectors: {error}") from error


def current(score: Score, eval: EvalConfig) -> bool:
    """Whether a stored score, if it is asked for, was computed with the vectors that are given.

    Where they are gone it stands; its signature says what they were.  Raises as `check_vectors`.
    """
    if score.metric not in MEASURES or score.metric not in eval.metrics:
        return True
    if eval.vectors is None or not Path(eval.vectors).exists():
        return True
    return f"|vectors:{check_vectors(eval.vectors)[:8]}|" in score.signature


def scores(
    names: Sequence[str], hypotheses: Sequence[str], references: References, eval: EvalConfig
) -> dict[str, Score]:
    """Each line by the best of its references; the score is their mean.

    A word is looked up as it is written, then in lower case; unknown ones are left out, and a text
    without a known word scores 0.

    Raises:
        DataError: no word of the references is known.
    """
    check(names, eval)
    words = Words(eval, lowercase=False)
    texts = [words.of(text) for text in hypotheses]
    others = [[words.of(reference) for reference in line] for line in references]
    vectors = WordVectors.read(
        _path(names, eval), [*texts, *(text for line in others for text in line)]
    )
    tokens = [word for line in others for text in line for word in text]
    known = sum(word in vectors for word in tokens)
    if tokens and not known:
        raise DataError(
            f"{vectors.path}: knows no word of the references, such as {tokens[0]!r}: are these "
            "vectors of that language, in the text format of word2vec, GloVe or fastText?"
        )
    signature = (
        f"nrefs:{reference_count(references)}|refs:max|{words.signature}|"
        f"vectors:{vectors.digest[:8]}|dim:{vectors.size}"
        f"|known:{known / max(1, len(tokens)):.1%}|{VERSION}"
    )
    pairs = zip(texts, others, strict=True)
    lines = [(vectors[text], [vectors[other] for other in line]) for text, line in pairs]
    out = {}
    for name in names:
        measure = MEASURES[name]
        rows = [max(measure(text, other) for other in line) for text, line in lines]
        out[name] = Score.mean(name, rows, signature)
    return out


def average(text: Matrix, reference: Matrix) -> float:
    """Cosine of the mean vectors [words, size]."""
    return _cosine(text.sum(0), reference.sum(0))


def extrema(text: Matrix, reference: Matrix) -> float:
    """Cosine of the values farthest from zero in each dimension; the positive one of two equal."""
    return _cosine(_farthest(text), _farthest(reference))


def greedy(text: Matrix, reference: Matrix) -> float:
    """Each word's best match in the other text, averaged over words and directions."""
    if not len(text) or not len(reference):
        return 0.0
    cosines = _directions(text) @ _directions(reference).T
    return float(cosines.max(0).mean() + cosines.max(1).mean()) / 2


MEASURES: dict[str, Callable[[Matrix, Matrix], float]] = {
    "embedding-average": average,
    "embedding-greedy": greedy,
    "embedding-extrema": extrema,
}


def _path(names: Sequence[str], eval: EvalConfig) -> str:
    if eval.vectors is None:
        raise UsageError(
            f"{names[0]} needs word vectors: give their file by eval.vectors in the recipe, or by "
            "--vectors FILE"
        )
    return eval.vectors


def _farthest(text: Matrix) -> Vector:
    if not len(text):
        return np.zeros(text.shape[1])
    high, low = text.max(0), text.min(0)
    farthest: Vector = np.where(high >= -low, high, low)
    return farthest


def _directions(text: Matrix) -> Matrix:
    lengths = np.linalg.norm(text, axis=1, keepdims=True)
    return text / np.where(lengths == 0, 1, lengths)


def _cosine(one: Vector, other: Vector) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else 0.0
