"""Tests of selective attention: the definition, padding, decoding after blocks."""

import pytest
import torch
from helpers.tensors import packed, sequences, valid_tokens

from attnkit.attention import Mask, Shape
from attnkit.layers import MultiHead
from attnkit.mechanisms.selective import Selective
from attnkit.ops import score_chunks


def formula(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return the weights of one row [H, T, D] by the definition, number by number."""
    heads, length, width = q.shape
    scores = torch.full((heads, length, length), -torch.inf, dtype=torch.float64)
    for i in range(length):
        for j in range(i + 1):
            selected = sum(max(0.0, float(q[0, m] @ k[0, j]) / width**0.5) for m in range(j + 1, i) if j > 0)
            for head in range(heads):
                scores[head, i, j] = q[head, i] @ k[head, j] / width**0.5 - selected
    return scores.softmax(-1)


@pytest.mark.parametrize("length", [1, 2, 3, 33])
def test_weights_equal_the_definition(length: int) -> None:
    q, k = sequences(length, 4, 4)
    maps = Selective(Shape(3, 4, 99)).weights(q, k, k, packed(length))
    torch.testing.assert_close(maps, torch.stack([formula(*row) for row in zip(q, k, strict=True)]))


@pytest.mark.parametrize("length", [2, 33, 70])
def test_decoding_continues_a_text_that_was_read_in_blocks(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = MultiHead.build("selective", 24, 3, 99).double()
    x, valid = torch.randn(2, length + 1, 24).double(), valid_tokens(length + 1, slice(0), slice(length // 2))
    whole = layer(x, Mask.of(valid, length + 1, causal=True)).y
    monkeypatch.setattr(score_chunks, "MIN_SCORES", 1)
    state = layer(x[:, :-1], Mask.of(valid[:, :-1], length, causal=True)).state
    step = layer(x[:, -1:], Mask.of(valid, 1, causal=True, start=length), state=state).y
    torch.testing.assert_close(step, whole[:, -1:])


def test_padding_selects_nothing_and_is_not_the_first_token() -> None:
    q, k = sequences(9, 4, 4)
    valid = valid_tokens(9, slice(3), slice(4, 6))
    maps = Selective(Shape(3, 4, 9)).weights(q * 3, k, k, Mask.of(valid, 9, causal=True))
    for row, real in enumerate(valid):
        torch.testing.assert_close(maps[row][:, real][:, :, real], formula(q[row][:, real] * 3, k[row][:, real]))
