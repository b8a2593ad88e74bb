"""Embedding average, greedy matching and vector extrema, from the user's word vectors.

Source: Liu et al. 2016, "How NOT To Evaluate Your Dialogue System", section 3.2, with greedy matching of Rus and
Lintean 2012 and vector extrema of Forgues et al. 2014. The file has one word per line, in the text format of word2vec,
GloVe and fastText.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from attnkit.data.formats import read_lines
from attnkit.errors import DataError, MissingInputError, UsageError
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.base import VERSION, References, Score, reference_count
from attnkit.scoring.metrics.tokenizers import Words
from attnkit.storage.files import check_file, sha256_file
from attnkit.text import quoted

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
HEADER = re.compile(r"\d+ \d+")
"""First line of word2vec and fastText: numbers of words and of dimensions; GloVe has none."""


def check(names: Sequence[str], eval: EvalConfig) -> None:
    """Validate the file of word vectors.

    Raises:
        UsageError: no file is given.
        MissingInputError: the file does not exist.
        DataError: the file is malformed (file:line).
    """
    if eval.vectors is None:
        raise UsageError(f"{names[0]} needs word vectors: set eval.vectors in the recipe, or add --vectors FILE")
    try:
        file_digest(eval.vectors)
    except MissingInputError as error:
        raise MissingInputError(f"word vectors: {error}") from error


def current(score: Score, eval: EvalConfig) -> bool:
    """Return whether a stored score by a metric of `eval` was computed with `eval.vectors`; True for other metrics.

    If the file is missing, the score stays valid: its signature has the digest of the vectors. Raises as `check`.
    """
    if score.metric not in MEASURES or score.metric not in eval.metrics:
        return True
    if eval.vectors is None or not Path(eval.vectors).exists():
        return True
    return f"|vectors:{file_digest(eval.vectors)[:8]}|" in score.signature


def scores(
    names: Sequence[str], hypotheses: Sequence[str], references: References, eval: EvalConfig
) -> dict[str, Score]:
    """Score each line by its best reference.

    A word is looked up as written, then in lower case. Unknown words are skipped; a text without a known word scores
    0. Reading the file takes about 6 s per GB.

    Raises DataError if no word of the references is known.
    """
    check(names, eval)
    path, words = Path(str(eval.vectors)), Words(eval, lowercase=False)
    texts = [words.of(text) for text in hypotheses]
    reference_words = [[words.of(reference) for reference in line] for line in references]
    tokens = [word for line in reference_words for text in line for word in text]
    needed = {form for text in (tokens, *texts) for word in text for form in (word, word.lower())}
    size, vectors = 0, dict[str, Vector]()
    for location, word, numbers in _rows(path):
        size = size or numbers.count(" ") + 1
        if word in needed and word not in vectors:
            vectors[word] = _vector(location, numbers)
    known = sum(word in vectors or word.lower() in vectors for word in tokens)
    if tokens and not known:
        raise DataError(
            f"{path}: has no vector of any word of the references, such as {tokens[0]!r}: use vectors of the "
            "same language, in the text format of word2vec, GloVe or fastText"
        )

    def matrix(text: Sequence[str]) -> Matrix:
        """Return the vectors of the known words, [words, size]."""
        rows = [vectors.get(word, vectors.get(word.lower())) for word in text]
        return np.array([row for row in rows if row is not None]).reshape(-1, size)

    signature = (
        f"nrefs:{reference_count(references)}|refs:max|{words.signature}|"
        f"vectors:{file_digest(str(path))[:8]}|dim:{size}"
        f"|known:{known / max(1, len(tokens)):.1%}|{VERSION}"
    )
    lines = [(matrix(text), list(map(matrix, line))) for text, line in zip(texts, reference_words, strict=True)]
    out = {}
    for name in names:
        measure = MEASURES[name]
        rows = [max(measure(text, reference) for reference in line) for text, line in lines]
        out[name] = Score.mean(name, rows, signature)
    return out


def average(text: Matrix, reference: Matrix) -> float:
    """Return the cosine of the mean vectors of two texts [words, size]."""
    return _cosine(text.sum(0), reference.sum(0))


def extrema(text: Matrix, reference: Matrix) -> float:
    """Return the cosine of the values farthest from zero in each dimension; of x and -x the positive value."""
    return _cosine(_farthest(text), _farthest(reference))


def greedy(text: Matrix, reference: Matrix) -> float:
    """Return the best match of each word in the other text, averaged over words and directions."""
    if not len(text) or not len(reference):
        return 0.0
    cosines = _unit_vectors(text) @ _unit_vectors(reference).T
    return float(cosines.max(0).mean() + cosines.max(1).mean()) / 2


MEASURES: dict[str, Callable[[Matrix, Matrix], float]] = {
    "embedding-average": average,
    "embedding-greedy": greedy,
    "embedding-extrema": extrema,
}


def _farthest(text: Matrix) -> Vector:
    if not len(text):
        return np.zeros(text.shape[1])
    high, low = text.max(0), text.min(0)
    farthest: Vector = np.where(high >= -low, high, low)
    return farthest


def _unit_vectors(text: Matrix) -> Matrix:
    norms = np.linalg.norm(text, axis=1, keepdims=True)
    return text / np.where(norms == 0, 1, norms)


def _cosine(a: Vector, b: Vector) -> float:
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms else 0.0


def file_digest(name: str) -> str:
    """Return the SHA-256 of a valid file of vectors. Raises MissingInputError or DataError as `check`."""
    path = Path(name)
    status = check_file(path)
    return _digest(path, status.st_size, status.st_mtime_ns)


@cache
def _digest(path: Path, size: int, changed: int) -> str:
    """Return `file_digest`, cached for each size and modification time of the file."""
    rows = _rows(path)
    if not (first := next(rows, None)):
        raise DataError(f"{path}: has no word vectors")
    _vector(first[0], first[2])
    for _ in rows:  # raises DataError for a malformed line
        pass
    return sha256_file(path)


def _rows(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield file:line, word and numbers of each line; a word may contain spaces, as a few words of GloVe do."""
    size = 0
    for number, line in enumerate(read_lines(path, "replace"), 1):
        line, location = line.rstrip(), f"{path}:{number}"
        if number == 1 and HEADER.fullmatch(line):
            size = int(line.split()[1])
            continue
        spaces = line.count(" ")
        size = size or spaces
        if not size or spaces < size:
            expected = f"{size} numbers" if size else "its numbers"
            raise DataError(
                f"{location}: must be a word and {expected}, separated by spaces, got {quoted(line)}; use the "
                "text format of word2vec, GloVe or fastText"
            )
        # the numbers are not split here: most words are not needed, and splitting takes most of the time
        word, *numbers = line.split(" ", 1) if spaces == size else line.rsplit(" ", size)
        yield location, word, " ".join(numbers)


def _vector(location: str, numbers: str) -> Vector:
    out = []
    for number in numbers.split(" "):
        try:
            out.append(float(number))
        except ValueError:
            out.append(math.nan)
        if not math.isfinite(out[-1]):
            raise DataError(f"{location}: {quoted(number)} is not a finite number")
    return np.array(out)
