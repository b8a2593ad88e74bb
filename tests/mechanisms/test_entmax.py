"""Tests of entmax: thresholds against sorting, the definition, gradients, a learned alpha."""

from typing import Any

import pytest
import torch
from helpers.tensors import packed
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnkit.attention import Shape
from attnkit.mechanisms import entmax
from attnkit.mechanisms.entmax import Entmax, EntmaxWeights


def sparsemax(z: Tensor) -> Tensor:
    """Return sparsemax by sorting, as Martins and Astudillo write it (algorithm 1)."""
    best = z.sort(-1, descending=True).values
    count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    used = (1 + count * best > best.cumsum(-1)).sum(-1, keepdim=True)
    tau = (best.cumsum(-1).gather(-1, used - 1) - 1) / used
    return (z - tau).clamp_min(0)


def entmax15(z: Tensor) -> Tensor:
    """Return 1.5-entmax by sorting, as Peters et al. write it (algorithm 2)."""
    best = (z / 2).sort(-1, descending=True).values
    count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    mean, square = best.cumsum(-1) / count, (best**2).cumsum(-1) / count
    tau = mean - ((1 - count * (square - mean**2)) / count).clamp_min(0).sqrt()
    used = (tau <= best).sum(-1, keepdim=True)
    return (z / 2 - tau.gather(-1, used - 1)).clamp_min(0) ** 2


def weights_of(scores: Tensor, alpha: float) -> Tensor:
    weights: Tensor = EntmaxWeights.apply(scores, float(alpha))
    return weights


def random_scores(keys: int, spread: float, rows: int = 50) -> Tensor:
    generator = torch.Generator().manual_seed(keys)
    return torch.randn(2, 3, rows, keys, generator=generator, dtype=torch.float64) * spread


@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("keys", [1, 2, 17, 300])
def test_weights_equal_those_by_sorting(keys: int, spread: float) -> None:
    scores = random_scores(keys, spread)
    shifted = scores - scores.amax(-1, keepdim=True)  # sums of squares would lose digits
    torch.testing.assert_close(weights_of(scores, 2.0), sparsemax(shifted), rtol=0, atol=1e-9)
    torch.testing.assert_close(weights_of(scores, 1.5), entmax15(shifted), rtol=0, atol=1e-7)


@pytest.mark.parametrize("alpha", [1.01, 1.25, 1.5, 1.9, 2.0, 2.5, 4.0])
@pytest.mark.parametrize("keys", [2, 40])
def test_weights_sum_to_1_with_one_threshold_per_row(alpha: float, keys: int) -> None:
    scores = random_scores(keys, 2.0)
    weights = weights_of(scores, alpha)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(scores[..., 0]))
    z = (alpha - 1) * scores
    tau = z - weights ** (alpha - 1)
    used = weights > 0
    low = tau.where(used, torch.inf).amin(-1, keepdim=True)
    high = tau.where(used, -torch.inf).amax(-1, keepdim=True)
    torch.testing.assert_close(low, high)
    assert (z <= high + 1e-9).where(~used, True).all()


def test_alpha_near_one_is_softmax() -> None:
    scores = random_scores(9, 1.0)
    torch.testing.assert_close(weights_of(scores, 1 + 1e-6), scores.softmax(-1), rtol=0, atol=1e-4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("alpha", [1.5, 1.2, 1.9, 2.0, 3.0])
def test_gradients_of_scores_and_alpha_are_finite_differences(alpha: float) -> None:
    scores = random_scores(6, 1.0, rows=2).requires_grad_()
    per_head = torch.full((3, 1, 1), alpha, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(EntmaxWeights.apply, (scores, alpha), atol=1e-4)
    if alpha < 2:  # a learned alpha is between 1 and 2
        assert torch.autograd.gradcheck(EntmaxWeights.apply, (scores, per_head), atol=1e-4)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), st.floats(1.01, 5))
def test_weights_of_any_scores_are_a_distribution(row: list[float], alpha: float) -> None:
    weights = weights_of(torch.tensor(row, dtype=torch.float64), alpha)
    assert abs(weights.sum().item() - 1) < 1e-6
    assert (weights >= 0).all()


def test_learned_alpha_starts_at_one_and_a_half_and_is_trained() -> None:
    torch.manual_seed(0)
    learned: Any = Entmax(Shape(2, 4, 9), alpha="learned")
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in "qkv")
    y = learned(q, k, v, packed(6)).y
    torch.testing.assert_close(y, Entmax(Shape(2, 4, 9))(q, k, v, packed(6)).y, rtol=1e-4, atol=1e-5)
    y.square().sum().backward()
    assert learned.shift.grad.abs().min() > 0


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.9, 2.0])
def test_steps_suffice_on_a_device_whose_values_are_not_read(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(2, 3, 2, 4096, dtype=torch.float64)
    expected = weights_of(scores, alpha)
    monkeypatch.setattr(entmax, "readable", lambda _: False)
    torch.testing.assert_close(weights_of(scores, alpha), expected, rtol=0, atol=1e-12)


def test_learned_alpha_that_rounds_to_two_is_sparsemax() -> None:
    scores = random_scores(40, 1.0)
    scores[..., 30:] = -torch.inf
    learned = EntmaxWeights.apply(scores, torch.full((3, 1, 1), 2.0, dtype=torch.float64))
    torch.testing.assert_close(learned, weights_of(scores, 2.0))
