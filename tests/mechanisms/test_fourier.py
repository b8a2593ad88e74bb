"""Tests of Fourier mixing over the tokens of each row without its padding."""

import math

import pytest
import torch
from helpers.tensors import packed, valid_tokens

from attnkit.attention import Mask, Shape
from attnkit.mechanisms.fourier import Fourier, cosines


@pytest.mark.parametrize("length", [1, 2, 7, 64, 101])
def test_map_is_the_matrix_of_cosines(length: int) -> None:
    v, mask = torch.zeros(1, 2, length, 3).double(), packed(length, causal=False)
    i = torch.arange(length).double()
    expected = (2 * math.pi * i[:, None] * i / length).cos().expand(1, 2, -1, -1)
    torch.testing.assert_close(Fourier(Shape(2, 3, 200)).weights(None, None, v, mask), expected)
    torch.testing.assert_close(cosines(mask).expand(1, 2, -1, -1), expected)


@pytest.mark.parametrize("readable", [True, False])
def test_each_row_has_the_waves_of_its_own_length(readable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By transforms, and by the matrix as on devices whose values are not read."""
    monkeypatch.setattr("attnkit.mechanisms.fourier.readable", lambda _: readable)
    v, valid = torch.randn(3, 2, 8, 4).double(), valid_tokens(8, slice(0), slice(3), slice(2, 4))
    mechanism = Fourier(Shape(2, 4, 9))
    y = mechanism(None, None, v, Mask.of(valid, 8, causal=False)).y
    for row, real in enumerate(valid):
        short = v[row : row + 1, :, real]
        alone = mechanism(None, None, short, packed(short.shape[2], causal=False)).y
        torch.testing.assert_close(y[row : row + 1, :, real], alone)
