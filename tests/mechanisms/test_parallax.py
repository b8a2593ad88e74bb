"""Parallax against the sums of its source."""

import pytest
import torch

from attnkit.attention import Mask, dot_scores
from attnkit.layers import MultiHead


@pytest.mark.parametrize("key_heads", [4, 2])
def test_it_is_the_linear_fit_of_its_source(key_heads: int) -> None:
    torch.manual_seed(0)
    layer = MultiHead.build("parallax", 16, 4, 30, key_heads=key_heads).double()
    x = torch.randn(2, 9, 16).double()
    mask = Mask.packed(9, x.device, causal=False)
    q, k, v, *_ = layer.project(x, mask)
    assert q is not None
    assert k is not None
    assert v is not None
    q, r = q.chunk(2, 1)
    k_all, v_all = (part.repeat_interleave(4 // key_heads, 1) for part in (k, v))
    p, along = (dot_scores(q, k) / 2).softmax(-1), dot_scores(r, k)
    slope = r @ (p @ k_all).transpose(-1, -2)  # of each query with the mean key of each
    expected = p @ v_all * (1 + slope.diagonal(dim1=2, dim2=3)[..., None]) - (p * along) @ v_all
    torch.testing.assert_close(layer.mechanism(*layer.project(x, mask)[:3], mask).y, expected)
