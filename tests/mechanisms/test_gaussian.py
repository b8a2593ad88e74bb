"""The Gaussian kernel: regression on keys, the expanded form, and the fused path."""

import pytest
import torch
from torch import Tensor

from attnkit.attention import one_head
from attnkit.attention.mask import Mask
from attnkit.layers import MultiHead

KEYS, VALUES = one_head((51,), (56,), (58,)), one_head((40,), (43,), (48,))


def kernel(width: int) -> torch.nn.Module:
    return MultiHead.build("gaussian", width, 1, 8).mechanism


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=["64", "32", "b16"])
def test_a_waist_of_57_weighs_the_mean_of_its_two_neighbours(dtype: torch.dtype) -> None:
    mask = Mask.cross(torch.ones(1, 3, dtype=torch.bool), 1)
    q, k, v = (x.to(dtype) for x in (one_head((57,)), KEYS, VALUES))
    maps = kernel(1).weights(q, k, v, mask).double()[0, 0, 0]
    torch.testing.assert_close(maps, torch.tensor([1.3e-8, 0.5, 0.5]).double(), rtol=0, atol=1e-6)
    y = kernel(1)(q, k, v, mask).y.item()
    assert y == pytest.approx(45.49999993, abs=1e-6 if dtype != torch.bfloat16 else 1e-2)


def direct(q: Tensor, k: Tensor) -> Tensor:
    return -(q[:, :, :, None] - k[:, :, None]).square().sum(-1) / 2


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-10), (torch.float32, 3e-4)])
def test_the_expanded_form_equals_the_distance(dtype: torch.dtype, error: float) -> None:
    torch.manual_seed(0)
    q, k = (10 * torch.randn(2, 2, 9, 8, dtype=dtype) for _ in range(2))
    scores = kernel(8).scores(q, k, Mask.cross(torch.ones(2, 9, dtype=torch.bool), 9))
    torch.testing.assert_close(scores, direct(q, k), rtol=1e-6, atol=error)
