"""Random segmentations have the distributions of the papers."""

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


def all_segmentations(text: str) -> dict[tuple[int, ...], float]:
    """Every way to cut a text into known pieces, with its log-probability, by trying them all."""
    found = {}
    for cuts in product((False, True), repeat=len(text) - 1):
        parts, start = [], 0
        for place, cut in enumerate((*cuts, True), start=1):
            if cut:
                parts.append(text[start:place])
                start = place
        if all(part in LATTICE for part in parts):
            ids = tuple(LATTICE[part][0] for part in parts)
            found[ids] = sum(LATTICE[part][1] for part in parts)
    return found


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_unigram_sampling_follows_the_powers_of_the_probabilities(alpha: float) -> None:
    weights = {ids: math.exp(alpha * log) for ids, log in all_segmentations("abcab").items()}
    number = 20_000
    drawn = Counter(map(tuple, UnigramSampler(LATTICE, UNKNOWN, alpha).draws("abcab", number, Random(1))))
    assert set(drawn) <= set(weights)
    for ids, weight in weights.items():
        share = weight / sum(weights.values())
        # Five standard deviations of a binomial share.
        assert abs(drawn[ids] / number - share) < 5 * math.sqrt(share / number)


def test_dropout_follows_the_algorithm() -> None:
    """By hand, p = 1/2: "abc" merges ab first, then abc.

    A step keeps each possible merge with 1/2.  Both of ab, bc dropped: 1/4, a b c.  ab kept: 1/2;
    bc alone kept: 1/4.  Then abc is kept with 1/2.
    """
    number = 20_000
    drawn = Counter(map(tuple, BpeDropout(MERGES, UNKNOWN, 0.5).draws("abc", number, Random(2))))
    ab, bc, abc, a, b, c = (MERGES[x][0] for x in ("ab", "bc", "abc", "a", "b", "c"))
    expected = {(a, b, c): 1 / 4, (ab, c): 1 / 4, (a, bc): 1 / 8, (abc,): 3 / 8}
    assert set(drawn) == set(expected)
    for ids, share in expected.items():
        assert abs(drawn[ids] / number - share) < 5 * math.sqrt(share / number)


@pytest.mark.parametrize("segmenter", [UnigramSampler(LATTICE, UNKNOWN, 0.1), BpeDropout(MERGES, UNKNOWN, 0.9)])
def test_characters_without_a_piece_are_unknown_once_in_a_row(segmenter: Segmenter) -> None:
    (ids,) = sample(["a##"], segmenter, {}, 1)
    # The mark of the word's start is no piece here either.
    assert [UNKNOWN, *(i for i in ids if i != UNKNOWN), UNKNOWN] == ids


def test_frequent_words_are_not_all_cut_alike() -> None:
    texts = ["abcab"] * 3000
    drawn = {tuple(ids) for ids in sample(texts, UnigramSampler(LATTICE, UNKNOWN, 0.5), {}, 1)}
    assert len(drawn) > 3


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_limits_of_sampling_agree_with_sentencepiece(kind: str) -> None:
    """The likeliest draw of a unigram model, and BPE without dropout, are its own segmentation."""
    lines = ["the old cat", "the older dogs seldom see cats", "cat\u6f22\u5b57 __eot__dog x__eot__"]
    spec = schema.TokenizerConfig.model_validate({"type": kind, "size": 70, "special": ["__eot__"]})
    tokenizer = Tokenizer.train(spec, [Row(line, line) for line in lines[:2]] * 9)
    vocabulary = tokenizer.source
    # p ** 200 leaves the best segmentation only.
    alpha = 200.0 if kind == "unigram" else 0.0
    assert vocabulary.sample(lines, alpha=alpha, seed=1) == vocabulary.encode(lines)
    assert UNK in vocabulary.encode(lines)[2]
