"""Atrous attention: which pairs it allows."""

import pytest
import torch

from attnkit.attention import Mask, Shape
from attnkit.mechanisms.atrous import Atrous


@pytest.mark.parametrize(("causal", "pairs"), [(False, 22), (True, 15)])
def test_eight_tokens_with_rate_three_allow_so_many_pairs(causal: bool, pairs: int) -> None:
    mask = Mask.packed(8, torch.device("cpu"), causal=causal)
    assert Atrous(Shape(1, 4, 8), rate=3).allowed(mask).sum().item() == pairs


def test_the_first_two_tokens_see_the_right_keys() -> None:
    mask = Mask.packed(8, torch.device("cpu"), causal=False)
    seen = Atrous(Shape(1, 4, 8), rate=3).allowed(mask)[0, 0, :2].int().tolist()
    assert seen == [
        [1, 0, 0, 1, 0, 0, 1, 0],
        [0, 1, 0, 0, 1, 0, 0, 1],
    ]
