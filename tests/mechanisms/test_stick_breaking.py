"""Stick-breaking attention: what nearer keys leave."""

import pytest
import torch

from attnkit.attention import Mask, Shape
from attnkit.mechanisms.stick_breaking import StickBreaking, StickWeights


def by_products(scores: torch.Tensor, *, include_self: bool) -> torch.Tensor:
    """The definition, in loops."""
    share, rows = scores.sigmoid(), []
    for i in range(scores.shape[-1]):
        left, row = torch.ones_like(scores[..., 0, 0]), [torch.zeros_like(scores[..., 0, 0])]
        row *= scores.shape[-1]
        for j in reversed(range(i + include_self)):
            row[j] = share[..., i, j] * left
            left = left * (1 - share[..., i, j])
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("length", [1, 2, 9, 40])
def test_it_is_the_product_of_the_definition(length: int, include_self: bool) -> None:
    generator = torch.Generator().manual_seed(length)
    q, k = (torch.randn(2, 3, length, 4, generator=generator).double() * 2 for _ in "qk")
    made = StickBreaking(Shape(3, 4, 50), include_self=include_self)
    mask = Mask.packed(length, q.device, causal=True)
    expected = by_products(q @ k.transpose(-1, -2) / 2, include_self=include_self)
    torch.testing.assert_close(made.weights(q, k, k, mask), expected)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_scores_are_finite_and_exact(size: float) -> None:
    """With +inf the nearest key takes all, with -inf nobody takes anything."""
    q = torch.full((1, 1, 5, 1), size).requires_grad_()
    k = torch.ones(1, 1, 5, 1)
    made = StickBreaking(Shape(1, 1, 5))
    maps = made.weights(q, k, k, Mask.packed(5, k.device, causal=True))
    expected = torch.eye(4).mul(size > 0)
    torch.testing.assert_close(maps[0, 0, 1:, :4], expected)
    (gradient,) = torch.autograd.grad(maps.sum(), [q])
    assert gradient.isfinite().all()


@pytest.mark.parametrize("size", [1e4, 1e8, 1e30, float("inf")])
def test_a_large_score_takes_what_nearer_keys_leave(size: float) -> None:
    scores = torch.tensor([[size, 0.0]], requires_grad=True)
    weights = StickWeights.apply(scores, torch.zeros(1, 2, dtype=torch.bool))
    assert weights.tolist() == [[0.5, 0.5]]
    (gradient,) = torch.autograd.grad(weights.sum(), scores)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("length", [2, 9, 40])
def test_gradients_are_those_of_the_definition(length: int, include_self: bool) -> None:
    generator = torch.Generator().manual_seed(length)
    scores = torch.randn(2, 3, length, length, generator=generator, dtype=torch.float64) * 3
    grad = torch.randn(scores.shape, generator=generator, dtype=torch.float64)
    scores.requires_grad_()
    hidden = ~torch.ones(length, length, dtype=torch.bool).tril(include_self - 1)
    found = StickWeights.apply(scores, hidden)
    expected = by_products(scores, include_self=include_self)
    torch.testing.assert_close(found, expected)
    one, two = (torch.autograd.grad(y, scores, grad) for y in (found, expected))
    torch.testing.assert_close(one, two)
