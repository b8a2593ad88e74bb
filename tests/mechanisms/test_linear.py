"""Tests of linear attention: feature maps, the state, worked numbers."""

import math

import pytest
import torch
from helpers.tensors import packed
from torch.nn import functional as F

from attnkit.attention import Shape, one_head
from attnkit.layers import MultiHead
from attnkit.mechanisms.linear import LinearAttention, _elu_plus_one
from attnkit.ops.linear_attention import quotient

ROWS = one_head((1, 0), (0, 1), (1, 1))


def test_taylor_similarity_of_a_zero_vector_is_uniform() -> None:
    mechanism = LinearAttention(Shape(1, 2, 8), feature_map="taylor")
    maps = mechanism.weights(torch.zeros_like(ROWS), ROWS, ROWS, packed(3, causal=False))
    torch.testing.assert_close(maps, torch.full_like(maps, 1 / 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_single_antipodal_key_gets_all_weight(dtype: torch.dtype) -> None:
    q = torch.randn(1, 1, 1, 16, generator=torch.Generator().manual_seed(1), dtype=dtype)
    y = LinearAttention(Shape(1, 16, 8), feature_map="taylor")(q, -q, q, packed(1)).y
    torch.testing.assert_close(y, q, rtol=0.5, atol=0)


@pytest.mark.parametrize(("features", "rank"), [(None, 4), (3, 3), (16, 16)])
def test_rank_of_the_map_is_at_most_the_number_of_features(features: int | None, rank: int) -> None:
    x = torch.randn(1, 1, 30, 4, generator=torch.Generator().manual_seed(2)).double()
    torch.manual_seed(1)
    mechanism = LinearAttention(Shape(1, 4, 30), feature_map="exp", features=features).double()
    maps = mechanism.weights(x, x, x, packed(30, causal=False))
    assert torch.linalg.matrix_rank(maps[0, 0], rtol=1e-10) <= rank
    assert (mechanism.wide_q is None) == (features is None)


def test_feature_projections_are_learned_and_the_state_is_constant() -> None:
    layer = MultiHead.build("linear", 16, 4, 50, feature_map="exp", features=16)
    assert {name for name, _ in layer.mechanism.named_parameters()} == {"wide_q", "wide_k"}
    output = layer(torch.randn(2, 9, 16), packed(9))
    assert output.state[0].shape == (2, 4, 16, 5)
    output.y.sum().backward()
    assert layer.mechanism.wide_k.grad.abs().max() > 0


def test_last_column_of_the_state_is_the_denominator() -> None:
    sums, peak = LinearAttention(Shape(1, 2, 8))(ROWS, ROWS, ROWS, packed(3)).state
    assert peak is None
    torch.testing.assert_close(sums[0, 0, :, 2], torch.tensor([5.0, 5.0]).double())
    torch.testing.assert_close(quotient(one_head((2, 4, 2), (0, 0, 0))), one_head((1, 2), (0, 0)))


def test_features_of_low_scores_keep_their_digits() -> None:
    """elu(x) + 1 of x = -18 was 0 in float32, so that the row summed to 0."""
    mechanism = LinearAttention(Shape(heads=1, head_width=4, max_length=3))
    x = torch.tensor([[-18.0, -19, -20, -19], [-17, -18, -16, -19]])[None, None]
    exact = mechanism.double().weights(*[x.double()] * 3, packed(2, causal=False))
    torch.testing.assert_close(mechanism.float().weights(x, x, x, packed(2, causal=False)).double(), exact)


def test_feature_map_has_the_values_and_derivatives_of_elu_plus_one() -> None:
    x = torch.tensor([-700.0, -30, -2, -1e-9, 0, 1e-9, 3], dtype=torch.float64, requires_grad=True)
    y = _elu_plus_one(x)
    torch.testing.assert_close(y, F.elu(x) + 1, atol=1e-15, rtol=1e-15)
    assert y.log()[:3].tolist() == pytest.approx([-700, -30, -2])  # where elu(x) + 1 has no digits
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(slope, x.clamp_max(0).exp())
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    assert curvature.tolist()[:4] == pytest.approx([math.exp(-700), math.exp(-30), math.exp(-2), 1])
    assert curvature.tolist()[5:] == [0, 0]
    away_from_0 = torch.linspace(-3, 3, 20, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(_elu_plus_one, away_from_0)
    assert torch.autograd.gradgradcheck(_elu_plus_one, away_from_0)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(_elu_plus_one))(x), slope)
