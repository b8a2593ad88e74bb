"""Tests of the Gaussian kernel: regression on keys, the expanded form, the fused path."""

import pytest
import torch

from attnkit.attention import one_head
from attnkit.attention.mask import Mask
from attnkit.layers import MultiHead


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=["64", "32", "b16"])
def test_waist_of_57_weighs_the_mean_of_its_two_neighbors(dtype: torch.dtype) -> None:
    mask = Mask.cross(torch.ones(1, 3, dtype=torch.bool), 1)
    mechanism = MultiHead.build("gaussian", 1, 1, 8).mechanism
    q, k, v = (one_head(*rows).to(dtype) for rows in ([(57,)], [(51,), (56,), (58,)], [(40,), (43,), (48,)]))
    maps = mechanism.weights(q, k, v, mask).double()[0, 0, 0]
    torch.testing.assert_close(maps, torch.tensor([1.3e-8, 0.5, 0.5]).double(), rtol=0, atol=1e-6)
    y = mechanism(q, k, v, mask).y.item()
    assert y == pytest.approx(45.49999993, abs=1e-6 if dtype != torch.bfloat16 else 1e-2)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-10), (torch.float32, 3e-4)])
def test_expanded_scores_equal_the_distance(dtype: torch.dtype, error: float) -> None:
    torch.manual_seed(0)
    q, k = (10 * torch.randn(2, 2, 9, 8, dtype=dtype) for _ in range(2))
    mask = Mask.cross(torch.ones(2, 9, dtype=torch.bool), 9)
    scores = MultiHead.build("gaussian", 8, 1, 8).mechanism.scores(q, k, mask)
    expected = -(q[:, :, :, None] - k[:, :, None]).square().sum(-1) / 2
    torch.testing.assert_close(scores, expected, rtol=1e-6, atol=error)
