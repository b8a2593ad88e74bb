"""Tests of attention sinks: a logit without a value, a window that keeps the first tokens."""

import pytest
import torch
from helpers.tensors import packed, sequences
from torch.nn.functional import pad

from attnkit.attention import Mask, Shape
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.mechanisms.sink import Sink


def test_sink_is_a_key_whose_value_is_zero() -> None:
    """Against scaled-dot with one more key, which has that score."""
    mechanism = Sink(Shape(2, 4, 20)).double()
    logits = torch.tensor([0.7, -1.1]).double()
    mechanism.logit.data.copy_(logits)  # type: ignore[union-attr]
    q, k, v = sequences(9, 4, 4, 4, heads=2)
    queries = torch.cat((q, torch.full_like(q[..., :1], 2.0)), -1)
    keys = pad(k, (0, 1, 0, 1))
    keys[:, :, 9, 4] = logits
    mask = Mask.cross(torch.ones(1, 10, dtype=torch.bool), 9)
    expected = ScaledDot(Shape(2, 5, 20))(queries, keys * 5**0.5 / 2, pad(v, (0, 0, 0, 1)), mask).y
    torch.testing.assert_close(mechanism(q, k, v, packed(9, causal=False)).y, expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("window", "keep"), [(1, 0), (2, 3), (5, 20)])
def test_window_sees_near_keys_and_the_first(window: int, keep: int, causal: bool) -> None:
    allowed = Sink(Shape(1, 4, 30), window=window, keep=keep).allowed(packed(12, causal))
    i, j = torch.arange(12)[:, None], torch.arange(12)
    expected = ((i - j).abs() <= window) | (j < keep)
    assert torch.equal(allowed[0, 0], expected & (j <= i) if causal else expected)  # type: ignore[index]
