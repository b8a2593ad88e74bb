"""Linformer: projections by position, limits, the fused kernel."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.mechanisms import linformer
from attnkit.mechanisms.linformer import Linformer

HEADS, WIDTH, LONGEST = 2, 16, 30


def made(**options: Any) -> Linformer:
    torch.manual_seed(1)
    layer = MultiHead.build("linformer", HEADS * WIDTH, HEADS, LONGEST, **options)
    mechanism = layer.mechanism.double()
    assert isinstance(mechanism, Linformer)
    return mechanism


def inputs(rows: int, length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shape = (rows, HEADS, length, WIDTH)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]


def plainly(mechanism: Linformer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One sentence without pads [H, n, D], as the equation says it."""
    length = q.shape[1]
    keys = torch.einsum("hnr,hnd->hrd", mechanism.project_k[:, :length], k)
    values = torch.einsum("hnr,hnd->hrd", mechanism.project_v[:, :length], v)
    return (q @ keys.transpose(1, 2) / WIDTH**0.5).softmax(-1) @ values


@pytest.mark.parametrize("rank", [2, 5, 64])
@pytest.mark.parametrize("limit", [0, 10**9])
def test_each_row_takes_the_projections_of_its_own_positions(
    limit: int, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linformer, "PLAIN_UP_TO", limit)
    mechanism, (q, k, v) = made(rank=rank), inputs(5, 12)
    valid = torch.ones(5, 12, dtype=torch.bool)
    valid[1, 8:] = False
    valid[2, :4] = False
    valid[3, 3:7] = False
    valid[4] = False
    y = mechanism(q, k, v, Mask.of(valid, 12, causal=False)).y
    for row in range(4):
        real = valid[row]
        expected = plainly(mechanism, q[row, :, real], k[row, :, real], v[row, :, real])
        torch.testing.assert_close(y[row, :, real], expected)
    assert y[4].abs().max().item() == 0


def test_pads_beyond_the_limit_are_no_tokens() -> None:
    mechanism, (q, k, v) = made(rank=5), inputs(1, LONGEST + 6)
    valid = torch.arange(LONGEST + 6)[None] >= 10
    y = mechanism(q, k, v, Mask.of(valid, LONGEST + 6, causal=False)).y[0, :, 10:]
    torch.testing.assert_close(y, plainly(mechanism, q[0, :, 10:], k[0, :, 10:], v[0, :, 10:]))


def test_keys_keep_their_variance_in_a_full_sequence() -> None:
    torch.manual_seed(0)
    mechanism = MultiHead.build("linformer", 64, 4, 400).mechanism
    keys = mechanism.project_k.transpose(1, 2) @ torch.randn(1, 4, 400, 16)
    assert keys.var().item() == pytest.approx(1, rel=0.1)
