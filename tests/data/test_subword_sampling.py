"""Tests of subword sampling against the distributions of the papers."""

import math
from collections import Counter
from itertools import product
from random import Random

import pytest

from attnkit.data.rows import Row
from attnkit.data.subword_sampling import BpeDropout, Segmenter, UnigramSampler, sample
from attnkit.data.tokenizer import UNK, Tokenizer
from attnkit.recipe import schema

UNKNOWN = 1
PIECES = {"a": -2.0, "b": -2.5, "c": -3.0, "ab": -2.2, "bc": -3.5, "abc": -4.0, "ca": -3.1}
LATTICE = {piece: (10 + i, score) for i, (piece, score) in enumerate(PIECES.items())}
MERGES = {piece: (20 + i, -float(i)) for i, piece in enumerate(["ab", "bc", "abc", "a", "b", "c"])}
DRAWS = 20_000


def all_segmentations(text: str) -> dict[tuple[int, ...], float]:
    """Return every segmentation into known pieces and its log-probability, by trying all cuts."""
    segmentations = {}
    for cuts in product((False, True), repeat=len(text) - 1):
        parts, start = [], 0
        for place, cut in enumerate((*cuts, True), start=1):
            if cut:
                parts.append(text[start:place])
                start = place
        if all(part in LATTICE for part in parts):
            ids = tuple(LATTICE[part][0] for part in parts)
            segmentations[ids] = sum(LATTICE[part][1] for part in parts)
    return segmentations


def check_shares(drawn: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> None:
    """Check that observed shares are within five standard deviations of binomial ones."""
    assert set(drawn) <= set(expected)
    for ids, share in expected.items():
        assert abs(drawn[ids] / DRAWS - share) < 5 * math.sqrt(share / DRAWS)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_unigram_sampling_follows_the_powers_of_the_probabilities(alpha: float) -> None:
    weights = {ids: math.exp(alpha * log) for ids, log in all_segmentations("abcab").items()}
    drawn = Counter(map(tuple, UnigramSampler(LATTICE, UNKNOWN, alpha).draws("abcab", DRAWS, Random(1))))
    check_shares(drawn, {ids: weight / sum(weights.values()) for ids, weight in weights.items()})


def test_bpe_dropout_has_the_probabilities_computed_by_hand() -> None:
    """With p = 1/2, "abc" merges ab first, then abc.

    A step keeps each possible merge with 1/2.  Both of ab, bc dropped: 1/4, a b c.  ab kept: 1/2;
    bc alone kept: 1/4.  Then abc is kept with 1/2.
    """
    drawn = Counter(map(tuple, BpeDropout(MERGES, UNKNOWN, 0.5).draws("abc", DRAWS, Random(2))))
    ab, bc, abc, a, b, c = (MERGES[x][0] for x in ("ab", "bc", "abc", "a", "b", "c"))
    check_shares(drawn, {(a, b, c): 1 / 4, (ab, c): 1 / 4, (a, bc): 1 / 8, (abc,): 3 / 8})


@pytest.mark.parametrize("segmenter", [UnigramSampler(LATTICE, UNKNOWN, 0.1), BpeDropout(MERGES, UNKNOWN, 0.9)])
def test_successive_unknown_characters_are_one_unknown_token(segmenter: Segmenter) -> None:
    (ids,) = sample(["a##"], segmenter, {}, 1)
    # the mark of a word's start has no piece here either
    assert [UNKNOWN, *(i for i in ids if i != UNKNOWN), UNKNOWN] == ids


def test_frequent_words_have_several_segmentations() -> None:
    texts = ["abcab"] * 3000
    drawn = {tuple(ids) for ids in sample(texts, UnigramSampler(LATTICE, UNKNOWN, 0.5), {}, 1)}
    assert len(drawn) > 3


@pytest.mark.parametrize(("kind", "alpha"), [("unigram", 200.0), ("bpe", 0.0)])
def test_limits_of_sampling_equal_sentencepiece(kind: str, alpha: float) -> None:
    """p ** 200 leaves the most probable segmentation only, which is sentencepiece's, as is BPE without dropout."""
    lines = ["the old cat", "the older dogs seldom see cats", "cat\u6f22\u5b57 __eot__dog x__eot__"]
    spec = schema.TokenizerConfig.model_validate({"type": kind, "size": 70, "special": ["__eot__"]})
    vocabulary = Tokenizer.train(spec, [Row(line, line) for line in lines[:2]] * 9).source
    assert vocabulary.sample(lines, alpha=alpha, seed=1) == vocabulary.encode(lines)
    assert UNK in vocabulary.encode(lines)[2]
