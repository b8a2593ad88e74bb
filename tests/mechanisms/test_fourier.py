"""Fourier mixing over the real tokens of each row."""

import math

import pytest
import torch

from attnkit.attention import Mask, Shape
from attnkit.mechanisms.fourier import Fourier, cosines


@pytest.mark.parametrize("length", [1, 2, 7, 64, 101])
def test_the_map_is_the_matrix_of_cosines(length: int) -> None:
    v = torch.zeros(1, 2, length, 3).double()
    mask = Mask.packed(length, v.device, causal=False)
    i = torch.arange(length).double()
    expected = (2 * math.pi * i[:, None] * i / length).cos().expand(1, 2, -1, -1)
    torch.testing.assert_close(Fourier(Shape(2, 3, 200)).weights(None, None, v, mask), expected)
    torch.testing.assert_close(cosines(mask).expand(1, 2, -1, -1), expected)


def test_each_row_has_the_waves_of_its_own_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """By transforms and, as on devices whose values are not looked at, by the matrix."""
    v = torch.randn(3, 2, 8, 4).double()
    valid = torch.ones(3, 8, dtype=torch.bool)
    valid[1, :3], valid[2, 2:4] = False, False
    made, mask = Fourier(Shape(2, 4, 9)), Mask.of(valid, 8, causal=False)
    for _ in range(2):
        y = made(None, None, v, mask).y.transpose(1, 2)
        for row, seen in enumerate(valid):
            short = v[row : row + 1, :, seen]
            alone = made(None, None, short, Mask.packed(short.shape[2], v.device, causal=False)).y
            torch.testing.assert_close(y[row][seen], alone[0].transpose(0, 1))
        monkeypatch.setattr("attnkit.mechanisms.fourier.readable", lambda _: False)
