"""Tests of sigmoid attention: the weight of each key, its bias."""

import math

import pytest
import torch
from helpers.tensors import packed, valid_tokens

from attnkit.attention import Mask, Shape
from attnkit.mechanisms.sigmoid import Sigmoid


@pytest.mark.parametrize("keys", [1, 2, 7])
def test_zero_scores_of_n_keys_weigh_one_in_n_plus_one(keys: int) -> None:
    """Padding is not counted."""
    q, k = torch.zeros(1, 2, keys, 4), torch.zeros(1, 2, keys + 2, 4)
    mask = Mask.cross(valid_tokens(keys + 2, slice(keys, None)), keys)
    maps = Sigmoid(Shape(2, 4, 9)).weights(q, k, k, mask)
    assert (maps[..., keys:] == 0).all()
    torch.testing.assert_close(maps[..., :keys], torch.full((1, 2, keys, keys), 1 / (1 + keys)))


def test_causal_query_counts_the_keys_that_it_sees() -> None:
    x = torch.zeros(1, 1, 4, 2)
    maps = Sigmoid(Shape(1, 2, 4)).weights(x, x, x, packed(4))[0, 0]
    expected = torch.ones(4, 4).tril() / torch.tensor([2.0, 3, 4, 5])[:, None]
    torch.testing.assert_close(maps, expected)


@pytest.mark.parametrize(("bias", "start"), [("learned", -math.log(9)), (-2.0, -2.0), (3, 3.0)])
def test_bias_is_learned_or_a_number(bias: str | float, start: float) -> None:
    torch.manual_seed(0)
    mechanism = Sigmoid(Shape(2, 4, 9), bias=bias)  # type: ignore[arg-type]
    assert len([*mechanism.parameters()]) == (bias == "learned")
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    maps = mechanism.weights(q, k, k, Mask.cross(torch.ones(1, 5, dtype=torch.bool), 3))
    torch.testing.assert_close(maps, (q @ k.transpose(-1, -2) / 2 + start).sigmoid())
