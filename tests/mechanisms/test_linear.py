"""Linear attention: its feature maps and their worked numbers."""

import math

import pytest
import torch
from torch.nn import functional as F

from attnkit.attention import Mask, Shape, one_head
from attnkit.layers import MultiHead
from attnkit.mechanisms.linear import LinearAttention, _elu_plus_one
from attnkit.ops.linear_attention import quotient

ROWS = one_head((1, 0), (0, 1), (1, 1))


def weights(q: torch.Tensor, k: torch.Tensor, **options: object) -> torch.Tensor:
    made = LinearAttention(Shape(1, q.shape[-1], 8), **options)
    return made.weights(q, k, k, Mask.packed(k.shape[2], k.device, causal=False))


def test_a_zero_vector_is_as_similar_to_all_in_taylor() -> None:
    maps = weights(torch.zeros_like(ROWS), ROWS, feature_map="taylor")
    torch.testing.assert_close(maps, torch.full_like(maps, 1 / 3))


def test_an_antipodal_key_alone_is_still_all_of_the_answer() -> None:
    for dtype in (torch.float32, torch.float64):
        q = torch.randn(1, 1, 5, 16, generator=torch.Generator().manual_seed(1), dtype=dtype)
        made = LinearAttention(Shape(1, 16, 8), feature_map="taylor")
        y = made(q[:, :, :1], -q[:, :, :1], q[:, :, :1], Mask.packed(1, q.device, causal=True)).y
        torch.testing.assert_close(y, q[:, :, :1], rtol=0.5, atol=0)


def test_the_rank_of_the_map_is_at_most_the_number_of_features() -> None:
    x = torch.randn(1, 1, 30, 4, generator=torch.Generator().manual_seed(2)).double()
    for features, rank in ((None, 4), (3, 3), (16, 16)):
        torch.manual_seed(1)
        made = LinearAttention(Shape(1, 4, 30), feature_map="exp", features=features).double()
        maps = made.weights(x, x, x, Mask.packed(30, x.device, causal=False))
        assert torch.linalg.matrix_rank(maps[0, 0], rtol=1e-10) <= rank
        assert (made.wide_q is None) == (features is None)


def test_widening_is_learned_per_head_and_keeps_the_state_constant() -> None:
    layer = MultiHead.build("linear", 16, 4, 50, feature_map="exp", features=16)
    assert {name for name, _ in layer.mechanism.named_parameters()} == {"wide_q", "wide_k"}
    x = torch.randn(2, 9, 16)
    out = layer(x, Mask.packed(9, x.device, causal=True))
    assert out.state[0].shape == (2, 4, 16, 5)
    out.y.sum().backward()
    assert layer.mechanism.wide_k.grad.abs().max() > 0


def test_the_state_holds_sums_of_which_the_last_column_is_the_denominator() -> None:
    made = LinearAttention(Shape(1, 2, 8))
    out = made(ROWS, ROWS, ROWS, Mask.packed(3, ROWS.device, causal=True))
    sums, peak = out.state
    assert peak is None
    torch.testing.assert_close(sums[0, 0, :, 2], torch.tensor([5.0, 5.0]).double())
    torch.testing.assert_close(quotient(one_head((2, 4, 2), (0, 0, 0))), one_head((1, 2), (0, 0)))


def test_features_of_low_scores_keep_their_digits() -> None:
    """elu(x) + 1 of x = -18 was 0 in float32, so that the row summed to 0."""
    mechanism = LinearAttention(Shape(heads=1, head_width=4, max_length=3))
    x = torch.tensor([[-18.0, -19, -20, -19], [-17, -18, -16, -19]])[None, None]
    mask = Mask.packed(2, x.device, causal=False)
    exact = mechanism.double().weights(x.double(), x.double(), x.double(), mask)
    torch.testing.assert_close(mechanism.float().weights(x, x, x, mask).double(), exact)


def test_the_feature_map_has_the_values_and_derivatives_of_elu_plus_one() -> None:
    x = torch.tensor([-700.0, -30, -2, -1e-9, 0, 1e-9, 3], dtype=torch.float64, requires_grad=True)
    y = _elu_plus_one(x)
    torch.testing.assert_close(y, F.elu(x) + 1, atol=1e-15, rtol=1e-15)
    assert y.log()[:3].tolist() == pytest.approx([-700, -30, -2])  # where elu(x) + 1 has no digits
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(slope, x.clamp_max(0).exp())
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    assert curvature.tolist()[:4] == pytest.approx([math.exp(-700), math.exp(-30), math.exp(-2), 1])
    assert curvature.tolist()[5:] == [0, 0]
    away = torch.linspace(-3, 3, 20, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(_elu_plus_one, away)
    assert torch.autograd.gradgradcheck(_elu_plus_one, away)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(_elu_plus_one))(x), slope)
