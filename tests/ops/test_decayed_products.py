"""Tests of products of queries with earlier keys whose channels decay: blocks and the plain form."""

from unittest.mock import Mock

import pytest
import torch
from helpers.tensors import trainable, with_gradients

from attnkit.ops import decayed_products as kernel
from attnkit.ops.decayed_products import decayed_products, plain


@pytest.mark.parametrize("rate", [0.0, 0.01, 1.0, 5.0, 100.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 64])
def test_blocks_equal_the_plain_form_forward_and_backward(
    size: int, dtype: torch.dtype, tolerance: float, rate: float
) -> None:
    generator = torch.Generator().manual_seed(size)
    q, other, k, steps = (torch.randn(2, 3, size, 5, generator=generator) for _ in range(4))
    tensors = [q, other, k, -(steps.abs() * rate).cumsum(-2)]
    fast, exact = (trainable(x.to(kind) for x in tensors) for kind in (dtype, torch.float64))
    found = with_gradients(decayed_products(fast[:2], *fast[2:]), fast)
    expected = with_gradients([plain(exact[0], *exact[2:]), plain(exact[1], *exact[2:])], exact)
    torch.testing.assert_close([x.double() for x in found], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("step", "sizes"), [(7.9, []), (8.1, [4])])
def test_strong_decays_use_the_plain_form_within_blocks(
    step: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is for 15 steps within a block of 16."""
    monkeypatch.setattr(kernel, "plain", spy := Mock(wraps=plain))
    q = torch.ones(1, 20, 2)
    decayed_products([q], q, -torch.full_like(q, step).cumsum(-2))
    assert [call.args[0].shape[-2] for call in spy.call_args_list] == sizes
