"""Differential attention: the difference of two half-width maps."""

import math

import pytest
import torch

from attnkit.attention import Mask, Shape
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.layers.positions import Rotary
from attnkit.mechanisms.differential import Differential
from attnkit.mechanisms.scaled_dot import ScaledDot


def drawn() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, 7, 8, generator=generator).double() for _ in "qkv"]


def test_the_second_half_is_taken_away_by_the_factor_and_all_is_rescaled() -> None:
    made = Differential(Shape(3, 8, 9), lambda_init=0.3).double()
    with torch.no_grad():
        made.vectors.normal_()
    q, k, v = drawn()
    mask = Mask.packed(7, q.device, causal=False)
    half = ScaledDot(Shape(3, 4, 9))
    one, two = (half.weights(q[..., s], k[..., s], v, mask) for s in (slice(4), slice(4, 8)))
    a, b = made.vectors  # each two vectors of D / 2
    factor = (a[0] @ a[1]).exp() - (b[0] @ b[1]).exp() + 0.3
    torch.testing.assert_close(made.weights(q, k, v, mask), 0.7 * (one - factor * two))


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_the_start_follows_the_depth(depth: int) -> None:
    made = Differential(Shape(2, 4, 9, depth=depth))
    assert made.lambda_init == pytest.approx(0.8 - 0.6 * math.exp(-0.3 * depth))


def test_rotary_positions_are_relative_in_each_half() -> None:
    torch.manual_seed(0)
    rotary = Rotary(8)
    layer = MultiHead.build("differential", 16, 2, 64, rotary=rotary).double()
    x = torch.randn(1, 9, 16).double()
    mask = Mask.packed(9, x.device, causal=False)
    shifted = mask._replace(q_pos=mask.q_pos + 11, k_pos=mask.k_pos + 11, layout="any")
    torch.testing.assert_close(layer.weights(x, shifted), layer.weights(x, mask))
    assert (layer.weights(x, mask._replace(q_pos=mask.q_pos * 0)) - layer.weights(x, mask)).any()


def test_running_sums_carry_both_maps() -> None:
    first = MultiHead.build("differential", 16, 2, 64, residual_scores=True).double()
    second = MultiHead.build("differential", 16, 2, 64, depth=1, residual_scores=True).double()
    x, mask = torch.randn(2, 5, 16).double(), Mask.packed(5, torch.device("cpu"), causal=True)
    scores = first(x, mask).scores
    assert scores.shape == (2, 4, 5, 5)
    assert second(x, mask, prior=scores).scores.shape == scores.shape
    plain = MultiHead.build("scaled-dot", 16, 2, 64, depth=1, residual_scores=True).double()
    with pytest.raises(UsageError, match="the previous layer has 4 score maps, but this layer has 2"):
        plain(x, mask, prior=scores)


def test_normalised_keys_cancel_the_scale() -> None:
    mechanism = Differential(Shape(heads=1, head_width=8, max_length=5))
    q, k = torch.randn(2, 1, 1, 3, 8).unbind()
    keys = mechanism.cached_keys(k * mechanism.key_length())
    scores = mechanism.scores(q, keys, Mask.packed(3, q.device, causal=False))
    first = q[..., :4] @ k[..., :4].transpose(-1, -2)
    torch.testing.assert_close(scores[:, :1], first)
