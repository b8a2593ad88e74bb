"""Selective attention: what earlier tokens took from the keys."""

import pytest
import torch

from attnkit.attention import Mask, Shape
from attnkit.layers import MultiHead
from attnkit.mechanisms.selective import Selective
from attnkit.ops import score_chunks


def drawn(length: int, heads: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    q = torch.randn(2, 3, length, 4, generator=generator).double()
    return q, torch.randn(2, heads, length, 4, generator=generator).double()


def by_loops(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The definition for one text [H, T, D], number by number."""
    heads, length, width = q.shape
    scores = torch.full((heads, length, length), -torch.inf, dtype=torch.float64)
    for i in range(length):
        for j in range(i + 1):
            taken = sum(max(0.0, float(q[0, m] @ k[0, j]) / width**0.5) for m in range(j + 1, i) if j > 0)
            for head in range(heads):
                scores[head, i, j] = q[head, i] @ k[head, j] / width**0.5 - taken
    return scores.softmax(-1)


@pytest.mark.parametrize("length", [1, 2, 3, 33])
def test_it_is_the_sum_of_the_definition(length: int) -> None:
    q, k = drawn(length)
    mask = Mask.packed(length, q.device, causal=True)
    maps = Selective(Shape(3, 4, 99)).weights(q, k, k, mask)
    expected = [by_loops(*row) for row in zip(q, k, strict=True)]
    torch.testing.assert_close(maps, torch.stack(expected))


@pytest.mark.parametrize("length", [2, 33, 70])
def test_steps_go_on_from_a_text_that_was_read_in_blocks(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = MultiHead.build("selective", 24, 3, 99).double()
    x = torch.randn(2, length + 1, 24).double()
    valid = torch.ones(2, length + 1, dtype=torch.bool)
    valid[1, : length // 2] = False
    whole = layer(x, Mask.of(valid, length + 1, causal=True)).y
    monkeypatch.setattr(score_chunks, "MIN_SCORES", 1)
    state = layer(x[:, :-1], Mask.of(valid[:, :-1], length, causal=True)).state
    step = layer(x[:, -1:], Mask.of(valid, 1, causal=True, start=length), state=state).y
    torch.testing.assert_close(step, whole[:, -1:])


def test_pads_select_nothing_and_the_first_token_is_the_first_real_one() -> None:
    q, k = drawn(9)
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[0, :3] = valid[1, 4:6] = False
    mask = Mask.of(valid, 9, causal=True)
    maps = Selective(Shape(3, 4, 9)).weights(q * 3, k, k, mask)
    for row in range(2):
        kept = valid[row].nonzero()[:, 0]
        expected = by_loops(q[row][:, kept] * 3, k[row][:, kept])
        torch.testing.assert_close(maps[row][:, kept][:, :, kept], expected)
