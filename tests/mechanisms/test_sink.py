"""Sinks: a logit without a value, a window that keeps the first tokens."""

import pytest
import torch

from attnkit.attention import Mask, Shape
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.mechanisms.sink import Sink


def drawn(length: int, heads: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(2, heads, length, 4, generator=generator).double() for _ in "qkv"]


def test_a_sink_is_a_key_whose_value_is_zero() -> None:
    """Against scaled-dot with one more key of that score."""
    made = Sink(Shape(2, 4, 20)).double()
    with torch.no_grad():
        assert made.logit is not None
        made.logit.copy_(torch.tensor([0.7, -1.1]))
    q, k, v = drawn(9)
    extended = torch.cat((q, torch.full_like(q[..., :1], 2.0)), -1)
    keys = torch.cat((k, torch.zeros_like(k[..., :1])), -1)
    extra = torch.zeros(2, 2, 1, 5).double()
    extra[..., 4] = made.logit.detach()[None, :, None]
    keys = torch.cat((keys * 5**0.5 / 2, extra * 5**0.5 / 2), 2)
    values = torch.cat((v, torch.zeros(2, 2, 1, 4).double()), 2)
    plain = ScaledDot(Shape(2, 5, 20))
    expected = plain(extended, keys, values, Mask.cross(torch.ones(1, 10, dtype=torch.bool), 9)).y
    found = made(q, k, v, Mask.packed(9, q.device, causal=False)).y
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("window", "keep"), [(1, 0), (2, 3), (5, 20)])
def test_a_window_sees_near_keys_and_the_first(window: int, keep: int, causal: bool) -> None:
    made = Sink(Shape(1, 4, 30), window=window, keep=keep)
    seen = made.allowed(Mask.packed(12, torch.device("cpu"), causal=causal))
    assert seen is not None
    for i in range(12):
        for j in range(12):
            expected = (abs(i - j) <= window or j < keep) and (j <= i or not causal)
            assert seen[0, 0, i, j].item() == expected
