"""Tests of n-gram blocking and minimum length against plain loops."""

import math

import numpy as np
import pytest
import torch
from helpers.plain_search import FORBIDDEN, repeats

from attnkit.data.tokenizer import EOS
from attnkit.recipe.schema import SearchConfig
from attnkit.search.base import constrain


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 30])
def test_ngram_blocking_equals_a_loop_over_the_vocabulary(order: int, length: int) -> None:
    prefix = np.random.default_rng(order).integers(4, 8, (50, length))
    scores = torch.randn(50, 9)
    expected = scores.clone()
    constrain(scores, SearchConfig(no_repeat_ngram=order), length, torch.from_numpy(prefix))
    for row, tokens in enumerate(prefix.tolist()):
        for token in range(9):
            if token in FORBIDDEN or repeats(tokens, token, order):
                expected[row, token] = -math.inf
    assert torch.equal(scores, expected)


@pytest.mark.parametrize(("length", "banned"), [(0, True), (1, True), (2, False), (3, False)])
def test_end_is_banned_until_the_minimum_length(length: int, banned: bool) -> None:
    scores = torch.zeros(2, 8)
    constrain(scores, SearchConfig(min_length=2), length, None)
    assert (scores[:, EOS] == -math.inf).tolist() == [banned] * 2


def test_end_is_allowed_if_nothing_else_is() -> None:
    scores = torch.zeros(2, 6)
    prefix = torch.tensor([[4, 5], [4, 4]])
    constrain(scores, SearchConfig(min_length=9, no_repeat_ngram=1), 2, prefix)
    assert scores[0].tolist() == [-math.inf] * 3 + [0.0] + [-math.inf] * 2
    assert scores[1].tolist() == [-math.inf] * 5 + [0.0]
