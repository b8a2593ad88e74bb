"""Efficient attention: a double softmax, in both directions only."""

import pytest
import torch

from attnkit.attention import Mask, Shape
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.mechanisms.efficient import Efficient


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    keys = k.masked_fill(~valid[:, None, :, None], -torch.inf).softmax(2)
    return q.softmax(-1) @ keys.nan_to_num(0).transpose(-1, -2) @ v


@pytest.mark.parametrize("length", [1, 2, 33, 70])
def test_answers_and_gradients_are_those_of_two_softmaxes(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    given = [torch.randn(3, 2, length, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]
    valid = torch.ones(3, length, dtype=torch.bool)
    valid[1, length // 2 :] = False
    y = Efficient(Shape(2, 4, 99))(*given, Mask.of(valid, length, causal=False)).y
    wanted = plain(*given, valid)
    found = [y, *torch.autograd.grad(y.square().sum(), given)]
    right = [wanted, *torch.autograd.grad(wanted.square().sum(), given)]
    torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)


def test_channels_of_very_different_size_keep_their_own_scale() -> None:
    """One shift for all channels lets the smaller ones vanish: 0/0."""
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, 1, 40, 4, generator=generator) for _ in range(3))
    k = k + torch.tensor([-300.0, 0, 50, 300])
    mask = Mask.packed(40, q.device, causal=False)
    wanted = plain(*(x.double() for x in (q, k, v)), mask.valid)
    y = Efficient(Shape(1, 4, 99))(q, k, v, mask).y
    # an ulp of 300 is 3e-5
    torch.testing.assert_close(y.double(), wanted, rtol=0, atol=1e-4)


def test_a_causal_role_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match="linear with feature_map: softmax"):
        MultiHead.build("efficient", 8, 2, 10, causal=True)
    layer, x = MultiHead.build("efficient", 8, 2, 10), torch.randn(1, 3, 8)
    mask = Mask.packed(3, x.device, causal=True)
    with pytest.raises(UsageError, match="cannot be causal"):
        layer(x, mask)
