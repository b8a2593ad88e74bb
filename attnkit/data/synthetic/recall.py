"""Generated rows whose source contains the answer: what an attention mechanism can recall.

    toy-copy                a text of words, and the same text again
    toy-selective-copy      eight words scattered among blanks, and the words alone, in order
    toy-associative-recall  pairs of words in random order, and a word; the answer is the partner of that word, then
                            the partner of the partner, through all pairs
    toy-induction           different words in a row, one of them again; the answer is the words that followed it

Words have no meaning, so no answer can be memorised from other rows.  Lengths are in words or in pairs.  Rows without
a given length have a length of the training range, so that longer rows show how a model extrapolates.

After Arjovsky et al. 2016 (copying), Jing et al. 2019 and Gu and Dao 2023 (selective copying), Ba et al. 2016 and
Arora et al. 2023 (associative recall), Olsson et al. 2022 (induction).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from attnkit.data.draw import Draw
from attnkit.data.rows import Row
from attnkit.recipe.corpus_cards import RowLength

Sides = tuple[list[str], list[str]]
"""Words of the source and of the target."""
BLANK, END, ASK = "_", ",", "?"
SCATTERED = 8
"""Number of words in a row of selective copying."""


def _words(count: int) -> list[str]:
    return [f"w{number}" for number in range(count)]


SELECTIVE_WORDS, COPY_WORDS, DISTINCT_WORDS = _words(16), _words(32), _words(128)
"""Vocabularies of selective copying, of copying, and of tasks whose words are all different."""


def copy(draw: Draw, length: int) -> Sides:
    text = [draw.choice(COPY_WORDS) for _ in range(length)]
    return text, text


def selective_copy(draw: Draw, length: int) -> Sides:
    text = [draw.choice(SELECTIVE_WORDS) for _ in range(min(length, SCATTERED))]
    source = [BLANK] * length
    for place, word in zip(sorted(draw.sample(range(length), len(text))), text, strict=True):
        source[place] = word
    return source, text


def associative_recall(draw: Draw, length: int) -> Sides:
    chain = draw.sample(DISTINCT_WORDS, length)
    answer = [*chain[1:], chain[0]]
    pairs = draw.sample([*zip(chain, answer, strict=True)])
    return [part for pair in pairs for part in (*pair, END)] + [ASK, chain[0]], answer


def induction(draw: Draw, length: int) -> Sides:
    row = draw.sample(DISTINCT_WORDS, length)
    start = draw.randrange(len(row) - 1)
    return [*row, ASK, row[start]], row[start + 1 :]


TASKS = {
    "toy-copy": copy,
    "toy-selective-copy": selective_copy,
    "toy-associative-recall": associative_recall,
    "toy-induction": induction,
}


@dataclass(frozen=True)
class RecallRows:
    """Generator of one corpus."""

    corpus: str
    length: RowLength
    VERSION: ClassVar = 1
    SIZES: ClassVar = {"train": 60_000, "valid": 200, "test": 200}

    def rows(self, split: str, size: int, seed: int, length: int = 0) -> Iterator[Row]:
        """Yield `size` rows of a split, all of `length` or, if it is 0, of the training lengths."""
        low, high = (length, length) if length else self.length.trained
        draw = Draw(f"{self.VERSION}/{self.corpus}/{split}/{seed}/{length}")
        for _ in range(size):
            source, target = TASKS[self.corpus](draw, draw.randint(low, high))
            yield Row(" ".join(source), " ".join(target))
