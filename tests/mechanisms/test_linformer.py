"""Tests of Linformer: projections by position, limits, the fused kernel."""

from typing import Any

import pytest
import torch
from helpers.tensors import sequences, valid_tokens
from torch import Tensor

from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.mechanisms import linformer

HEADS, WIDTH, LONGEST = 2, 16, 30


def build(**options: Any) -> Any:
    torch.manual_seed(1)
    return MultiHead.build("linformer", HEADS * WIDTH, HEADS, LONGEST, **options).mechanism.double()


def inputs(rows: int, length: int) -> list[Tensor]:
    return sequences(length, WIDTH, WIDTH, WIDTH, rows=rows, heads=HEADS)


def formula(mechanism: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the output for one row without padding [H, n, D], as the equation defines it."""
    length = q.shape[1]
    keys = torch.einsum("hnr,hnd->hrd", mechanism.project_k[:, :length], k)
    values = torch.einsum("hnr,hnd->hrd", mechanism.project_v[:, :length], v)
    return (q @ keys.transpose(1, 2) / WIDTH**0.5).softmax(-1) @ values


@pytest.mark.parametrize("rank", [2, 5, 64])
@pytest.mark.parametrize("limit", [0, 10**9])
def test_each_row_uses_the_projections_of_its_own_positions(
    limit: int, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linformer, "PLAIN_UP_TO", limit)
    mechanism, qkv = build(rank=rank), inputs(5, 12)
    valid = valid_tokens(12, slice(0), slice(8, None), slice(4), slice(3, 7), slice(None))
    y = mechanism(*qkv, Mask.of(valid, 12, causal=False)).y
    for row in range(4):
        expected = formula(mechanism, *(x[row, :, valid[row]] for x in qkv))
        torch.testing.assert_close(y[row, :, valid[row]], expected)
    assert y[4].abs().max().item() == 0


def test_padding_beyond_the_limit_is_ignored() -> None:
    mechanism, qkv = build(rank=5), inputs(1, LONGEST + 6)
    valid = valid_tokens(LONGEST + 6, slice(10))
    y = mechanism(*qkv, Mask.of(valid, LONGEST + 6, causal=False)).y[0, :, 10:]
    torch.testing.assert_close(y, formula(mechanism, *(x[0, :, 10:] for x in qkv)))


def test_projected_keys_keep_their_variance_in_a_full_sequence() -> None:
    torch.manual_seed(0)
    mechanism = MultiHead.build("linformer", 64, 4, 400).mechanism
    keys = mechanism.project_k.transpose(1, 2) @ torch.randn(1, 4, 400, 16)
    assert keys.var().item() == pytest.approx(1, rel=0.1)
