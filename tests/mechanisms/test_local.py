"""Local attention: which pairs it allows."""

import pytest
import torch

from attnkit.attention import Mask, Shape
from attnkit.mechanisms.local import Local


@pytest.mark.parametrize(("causal", "pairs"), [(False, 44), (True, 26)])
def test_eight_tokens_with_window_three_allow_so_many_pairs(causal: bool, pairs: int) -> None:
    mask = Mask.packed(8, torch.device("cpu"), causal=causal)
    assert Local(Shape(1, 4, 8), window=3).allowed(mask).sum().item() == pairs


def test_the_first_two_tokens_see_the_right_keys() -> None:
    mask = Mask.packed(8, torch.device("cpu"), causal=False)
    seen = Local(Shape(1, 4, 8), window=3).allowed(mask)[0, 0, :2].int().tolist()
    assert seen == [
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0],
    ]
