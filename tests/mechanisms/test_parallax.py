"""Test of Parallax against the sums of its source."""

from typing import Any

import pytest
import torch
from helpers.tensors import packed

from attnkit.attention import dot_scores
from attnkit.layers import MultiHead


@pytest.mark.parametrize("key_heads", [4, 2])
def test_outputs_are_the_linear_fit_of_the_source(key_heads: int) -> None:
    torch.manual_seed(0)
    layer = MultiHead.build("parallax", 16, 4, 30, key_heads=key_heads).double()
    mask = packed(9, causal=False)
    projected: Any = layer.project(torch.randn(2, 9, 16).double(), mask)
    q, r = projected.q.chunk(2, 1)
    k, v = (x.repeat_interleave(4 // key_heads, 1) for x in (projected.k, projected.v))
    p, along = (dot_scores(q, projected.k) / 2).softmax(-1), dot_scores(r, projected.k)
    slope = r @ (p @ k).transpose(-1, -2)  # of each query with the mean key of each
    expected = p @ v * (1 + slope.diagonal(dim1=2, dim2=3)[..., None]) - (p * along) @ v
    torch.testing.assert_close(layer.mechanism(*projected[:3], mask).y, expected)
