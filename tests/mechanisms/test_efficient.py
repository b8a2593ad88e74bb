"""Tests of efficient attention: a double softmax, for encoders only."""

import pytest
import torch
from helpers.tensors import packed, sequences, trainable, valid_tokens, with_gradients

from attnkit.attention import Mask, Shape
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.mechanisms.efficient import Efficient


def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    keys = k.masked_fill(~valid[:, None, :, None], -torch.inf).softmax(2)
    return q.softmax(-1) @ keys.nan_to_num(0).transpose(-1, -2) @ v


@pytest.mark.parametrize("length", [1, 2, 33, 70])
def test_outputs_and_gradients_are_those_of_two_softmaxes(length: int) -> None:
    qkv = trainable(sequences(length, 4, 4, 4, rows=3, heads=2))
    valid = valid_tokens(length, slice(0), slice(length // 2, None), slice(0))
    y = Efficient(Shape(2, 4, 99))(*qkv, Mask.of(valid, length, causal=False)).y
    expected = with_gradients(formula(*qkv, valid), qkv)
    torch.testing.assert_close(with_gradients(y, qkv), expected, rtol=1e-9, atol=1e-9)


def test_channels_of_very_different_size_keep_their_own_scale() -> None:
    """One shift for all channels lets the smaller ones vanish: 0/0."""
    q, k, v = (x.float() for x in sequences(40, 4, 4, 4, rows=1, heads=1))
    k, mask = k + torch.tensor([-300.0, 0, 50, 300]), packed(40, causal=False)
    expected = formula(*(x.double() for x in (q, k, v)), mask.valid)
    y = Efficient(Shape(1, 4, 99))(q, k, v, mask).y
    # an ulp of 300 is 3e-5
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=1e-4)


def test_causal_role_raises() -> None:
    with pytest.raises(UsageError, match="linear with feature_map: softmax"):
        MultiHead.build("efficient", 8, 2, 10, causal=True)
    with pytest.raises(UsageError, match="cannot be causal"):
        MultiHead.build("efficient", 8, 2, 10)(torch.randn(1, 3, 8), packed(3))
