"""Tests of differential attention: the difference of two maps of half the width."""

import math

import pytest
import torch
from helpers.tensors import packed, sequences

from attnkit.attention import Shape
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.layers.positions import Rotary
from attnkit.mechanisms.differential import Differential
from attnkit.mechanisms.scaled_dot import ScaledDot


def test_weights_are_the_rescaled_difference_of_two_maps() -> None:
    mechanism = Differential(Shape(3, 8, 9), lambda_init=0.3).double()
    torch.nn.init.normal_(mechanism.vectors)
    q, k, v = sequences(7, 8, 8, 8)
    mask, half = packed(7, causal=False), ScaledDot(Shape(3, 4, 9))
    first, second = (half.weights(q[..., s], k[..., s], v, mask) for s in (slice(4), slice(4, 8)))
    a, b = mechanism.vectors  # each two vectors of D / 2
    factor = (a[0] @ a[1]).exp() - (b[0] @ b[1]).exp() + 0.3
    torch.testing.assert_close(mechanism.weights(q, k, v, mask), 0.7 * (first - factor * second))


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_initial_factor_depends_on_the_depth(depth: int) -> None:
    mechanism = Differential(Shape(2, 4, 9, depth=depth))
    assert mechanism.lambda_init == pytest.approx(0.8 - 0.6 * math.exp(-0.3 * depth))


def test_rotary_positions_are_relative_in_each_half() -> None:
    torch.manual_seed(0)
    layer = MultiHead.build("differential", 16, 2, 64, rotary=Rotary(8)).double()
    x, mask = torch.randn(1, 9, 16).double(), packed(9, causal=False)
    shifted = mask._replace(q_pos=mask.q_pos + 11, k_pos=mask.k_pos + 11, layout="any")
    torch.testing.assert_close(layer.weights(x, shifted), layer.weights(x, mask))
    assert (layer.weights(x, mask._replace(q_pos=mask.q_pos * 0)) - layer.weights(x, mask)).any()


def test_residual_scores_have_both_maps() -> None:
    first, second, plain = (
        MultiHead.build(word, 16, 2, 64, depth=depth, residual_scores=True)
        for word, depth in (("differential", 0), ("differential", 1), ("scaled-dot", 1))
    )
    x = torch.randn(2, 5, 16)
    scores = first(x, packed(5)).scores
    assert scores.shape == (2, 4, 5, 5)
    assert second(x, packed(5), prior=scores).scores.shape == scores.shape
    with pytest.raises(UsageError, match="the previous layer has 4 score maps, but this layer has 2"):
        plain(x, packed(5), prior=scores)


def test_scores_of_normalized_keys_are_not_scaled() -> None:
    mechanism = Differential(Shape(heads=1, head_width=8, max_length=5))
    q, k = torch.randn(2, 1, 1, 3, 8).unbind()
    scores = mechanism.scores(q, mechanism.cached_keys(k * mechanism.key_length()), packed(3, causal=False))
    torch.testing.assert_close(scores[:, :1], q[..., :4] @ k[..., :4].transpose(-1, -2))
