"""Tests of stick-breaking attention: the definition, its gradients, extreme scores."""

import pytest
import torch
from helpers.tensors import packed, sequences, with_gradients

from attnkit.attention import Shape
from attnkit.mechanisms.stick_breaking import StickBreaking, StickWeights


def formula(scores: torch.Tensor, *, include_self: bool) -> torch.Tensor:
    """Return the weights by the definition, in loops."""
    share, rows = scores.sigmoid(), []
    for i in range(scores.shape[-1]):
        left, row = torch.ones_like(scores[..., 0, 0]), [scores[..., 0, 0] * 0] * scores.shape[-1]
        for j in reversed(range(i + include_self)):
            row[j] = share[..., i, j] * left
            left = left * (1 - share[..., i, j])
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("length", [1, 2, 9, 40])
def test_weights_and_gradients_equal_the_definition(length: int, include_self: bool) -> None:
    q, k = sequences(length, 4, 4)
    maps = StickBreaking(Shape(3, 4, 50), include_self=include_self).weights(2 * q, 2 * k, k, packed(length))
    torch.testing.assert_close(maps, formula(2 * q @ k.transpose(-1, -2), include_self=include_self))
    scores = (sequences(length, length)[0] * 3).requires_grad_()
    hidden = ~torch.ones(length, length, dtype=torch.bool).tril(include_self - 1)
    weights, expected = StickWeights.apply(scores, hidden), formula(scores, include_self=include_self)
    torch.testing.assert_close(with_gradients(weights, [scores]), with_gradients(expected, [scores]))


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_scores_are_finite_and_exact(size: float) -> None:
    """With +inf the nearest key gets all weight, with -inf no key gets any."""
    q, k = torch.full((1, 1, 5, 1), size).requires_grad_(), torch.ones(1, 1, 5, 1)
    maps = StickBreaking(Shape(1, 1, 5)).weights(q, k, k, packed(5))
    torch.testing.assert_close(maps[0, 0, 1:, :4], torch.eye(4).mul(size > 0))
    (gradient,) = torch.autograd.grad(maps.sum(), [q])
    assert gradient.isfinite().all()


@pytest.mark.parametrize("size", [1e4, 1e8, 1e30, float("inf")])
def test_large_score_gets_what_nearer_keys_leave(size: float) -> None:
    scores = torch.tensor([[size, 0.0]], requires_grad=True)
    weights = StickWeights.apply(scores, torch.zeros(1, 2, dtype=torch.bool))
    assert weights.tolist() == [[0.5, 0.5]]
    (gradient,) = torch.autograd.grad(weights.sum(), scores)
    assert gradient.isfinite().all()
