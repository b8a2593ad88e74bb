"""Tests of generated corpora whose next token has a known distribution."""

import hashlib
import math
from collections import Counter
from itertools import pairwise

import pytest

from attnkit.data.corpus import Corpus
from attnkit.data.draw import Draw
from attnkit.data.synthetic.known_source import END, LINE, SOURCES, KnownSource
from attnkit.errors import UsageError
from attnkit.recipe import corpus_cards
from attnkit.recipe.schema import DataConfig


@pytest.fixture(params=SOURCES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(name: str) -> KnownSource:
    return SOURCES[name]


def stream(name: str, split: str = "test", lines: int = 12) -> list[str]:
    data = DataConfig(corpus=name, size=lines)
    rows = list(Corpus.open(data, "language-modeling").rows(split))[:lines]
    return [word for row in rows for word in (*row.target.split(), END)]


@pytest.mark.parametrize("block", [1, 8, 32, 1024])
def test_end_of_a_line_is_the_first_token_of_a_block(name: str, block: int) -> None:
    places = [place for place, token in enumerate(stream(name)) if token == END]
    assert places == [LINE * number for number in range(1, 13)]
    assert all(place % block == 0 for place in places)
    assert corpus_cards.load(name).line_tokens == LINE


def test_probabilities_of_the_next_token_sum_to_1(source: KnownSource, name: str) -> None:
    tokens = stream(name)[LINE : LINE + 6]  # begins with an end
    for count in range(6):
        for before in (tokens[:count], tokens[1:count]):
            shares = source.next_tokens(before, 32)
            assert math.isclose(sum(shares.values()), 1)
            assert (END in shares) == (not before)


def test_observed_next_tokens_have_the_stated_probabilities(source: KnownSource, name: str) -> None:
    """Counts after each state are within five standard deviations."""
    tokens, block = stream(name, "train", 60), 16
    counts_after: dict[tuple[str, ...], Counter[str]] = {}
    for start in range(0, len(tokens) - block, block):
        part = tokens[start : start + block]
        for count in range(4):
            counts_after.setdefault(tuple(part[:count]), Counter())[part[count]] += 1
    for before, counts in counts_after.items():
        shares, total = source.next_tokens(before, block), counts.total()
        assert counts.keys() <= shares.keys()
        if total > 500 and before:
            for token, share in shares.items():
                deviation = math.sqrt(total * share * (1 - share)) + 1
                assert abs(counts[token] - total * share) < 5 * deviation, (before, token)


def test_block_that_does_not_divide_a_line_raises(source: KnownSource) -> None:
    with pytest.raises(UsageError, match="must divide the 1024 tokens of a line"):
        source.next_tokens((), 100)


@pytest.mark.parametrize(
    ("corpus", "before"),
    [
        ("toy-topics", ["dog", "bread"]),
        ("toy-topics", ["xyz"]),
        ("toy-chains", ["kami", "kami"]),
        ("toy-chains", ["ka"]),
        ("toy-chains", ["dog"]),
    ],
)
def test_impossible_words_raise(corpus: str, before: list[str]) -> None:
    with pytest.raises(UsageError, match="no line has these words"):
        SOURCES[corpus].next_tokens(before, 32)


@pytest.mark.parametrize(
    ("corpus", "split", "digest"),
    [
        ("toy-topics", "train", "3097f716ce4bea3e"),
        ("toy-topics", "test", "4863bd69f7ed2068"),
        ("toy-chains", "train", "97c0d7ef212b9ef6"),
        ("toy-chains", "test", "c676cf38e9277e65"),
    ],
)
def test_text_is_the_same_on_every_machine(corpus: str, split: str, digest: str) -> None:
    text = "\n".join(row.target for row in SOURCES[corpus].rows(split, 20, 1))
    assert [*SOURCES[corpus].rows(split, 2, 2)] != [*SOURCES[corpus].rows(split, 2, 1)]
    assert hashlib.sha256(text.encode()).hexdigest().startswith(digest)


def test_three_successive_syllables_are_independent() -> None:
    line = SOURCES["toy-chains"].line(Draw("x"))
    words = [next(line) for _ in range(30_000)]
    counts = Counter(word[:2] + word[2:] + after[2:] for word, after in pairwise(words))
    expected = (len(words) - 1) / 6**3
    assert len(counts) == 6**3
    assert max(abs(n - expected) for n in counts.values()) < 6 * math.sqrt(expected)
