"""The embedded corpus of language modelling."""

import hashlib
import math
from collections import Counter
from itertools import pairwise

import pytest

from attnkit.data.draw import Draw
from attnkit.data.synthetic import chains


def test_the_same_seed_gives_the_same_lines_and_another_gives_others() -> None:
    first = list(chains.rows("test", 2, 1))
    assert first == list(chains.rows("test", 2, 1)) == list(chains.rows("test", 3, 1))[:2]
    assert first != list(chains.rows("test", 2, 2))
    assert first != list(chains.rows("train", 2, 1))


@pytest.mark.parametrize(
    ("split", "digest"), [("train", "97c0d7ef212b9ef6"), ("test", "c676cf38e9277e65")]
)
def test_the_text_is_the_same_everywhere(split: str, digest: str) -> None:
    text = "\n".join(row.target for row in chains.rows(split, 20, 1))
    assert hashlib.sha256(text.encode()).hexdigest().startswith(digest)


def test_three_syllables_in_a_row_are_independent() -> None:
    line = chains.line(Draw("x"))
    words = [next(line) for _ in range(30_000)]
    counts = Counter(word[:2] + word[2:] + after[2:] for word, after in pairwise(words))
    expected = (len(words) - 1) / 6**3
    assert len(counts) == 6**3
    assert max(abs(n - expected) for n in counts.values()) < 6 * math.sqrt(expected)
