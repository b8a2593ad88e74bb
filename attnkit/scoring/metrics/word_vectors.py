"""Word vectors in the text format of word2vec, GloVe and fastText: a word a line."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from attnkit.data.formats import read_lines
from attnkit.errors import DataError
from attnkit.storage.files import check_file, sha256_file
from attnkit.text import quoted

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
HEADER = re.compile(r"\d+ \d+")
"""First line of word2vec and fastText: number of words and of dimensions; GloVe has none."""


@dataclass(frozen=True)
class WordVectors:
    """The vectors of the words of some texts."""

    path: Path
    digest: str
    """SHA-256 of the file."""
    size: int
    """Dimensions."""
    words: dict[str, Vector]

    @classmethod
    def read(cls, name: str, texts: Iterable[Sequence[str]]) -> "WordVectors":
        """Vectors of the words of these texts and of their lower case, where the file has them.

        The file is read as a stream; time is about 6 s for a GB.

        Raises:
            MissingInputError: there is no such file.
            DataError: it is malformed (file:line).
        """
        wanted = {form for text in texts for word in text for form in (word, word.lower())}
        path, found, size = Path(name), dict[str, Vector](), 0
        for place, word, numbers in _rows(path):
            size = size or numbers.count(" ") + 1
            if word in wanted and word not in found:
                found[word] = _vector(place, numbers)
        return cls(path, check_vectors(name), size, found)

    def __contains__(self, word: str) -> bool:
        return word in self.words or word.lower() in self.words

    def __getitem__(self, text: Sequence[str]) -> Matrix:
        """The vectors [known words, size] of a text."""
        rows = [self.words.get(word, self.words.get(word.lower())) for word in text]
        return np.array([row for row in rows if row is not None]).reshape(-1, self.size)


def check_vectors(name: str) -> str:
    """The SHA-256 of a file of vectors whose lines all have equally many fields.

    Raises MissingInputError, DataError: as `WordVectors.read`.
    """
    path = Path(name)
    status = check_file(path)
    return _checked(path, status.st_size, status.st_mtime_ns)


@cache
def _checked(path: Path, size: int, changed: int) -> str:
    """Once for each state of a file."""
    first = True
    for place, _, numbers in _rows(path):
        if first:
            _vector(place, numbers)
        first = False
    if first:
        raise DataError(f"{path}: has no word vectors")
    return sha256_file(path)


def _rows(path: Path) -> Iterator[tuple[str, str, str]]:
    """file:line, word and numbers of each line; a word may have spaces in it, as a few of GloVe."""
    size = 0
    for number, line in enumerate(read_lines(path, "replace"), 1):
        line, place = line.rstrip(), f"{path}:{number}"
        if number == 1 and HEADER.fullmatch(line):
            size = int(line.split()[1])
            continue
        spaces = line.count(" ")
        size = size or spaces
        if not size or spaces < size:
            wanted = f"{size} numbers" if size else "its numbers"
            raise DataError(
                f"{place}: must be a word and {wanted}, separated by spaces, got {quoted(line)}; "
                "word vectors are read in the text format of word2vec, GloVe or fastText"
            )
        word, *numbers = line.split(" ", 1) if spaces == size else line.rsplit(" ", size)
        yield place, word, " ".join(numbers)


def _vector(place: str, numbers: str) -> Vector:
    out = []
    for number in numbers.split(" "):
        try:
            out.append(float(number))
        except ValueError:
            out.append(math.nan)
        if not math.isfinite(out[-1]):
            raise DataError(f"{place}: {quoted(number)} is not a finite number")
    return np.array(out)
