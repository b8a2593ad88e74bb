"""Tests of block attention with a top-k gate: the choice of blocks, and gathered blocks against whole maps."""

import pytest
import torch
from helpers.tensors import assert_same_for_each, packed, sequences, trainable, valid_tokens, with_gradients
from torch.nn.functional import pad

from attnkit.attention import Mask, Shape
from attnkit.mechanisms import block_topk
from attnkit.mechanisms.block_topk import BlockTopk


def chosen(q: torch.Tensor, k: torch.Tensor, block: int, blocks: int, *, causal: bool) -> torch.Tensor:
    """Return which keys each query sees, by the definition, for rows without padding."""
    length = q.shape[2]
    visible = torch.zeros(*q.shape[:2], length, length, dtype=torch.bool)
    count = -(-length // block)
    for row, head, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        own = i // block
        visible[row, head, i, own * block : (own + 1) * block] = True
        others = [n for n in range(count) if (n < own if causal else n != own)]
        means = {n: (q[row, head, i] @ k[row, head, n * block : (n + 1) * block].mean(0)).item() for n in others}
        for n in sorted(others, key=means.__getitem__, reverse=True)[:blocks]:
            visible[row, head, i, n * block : (n + 1) * block] = True
    return visible.tril() if causal else visible


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("block", "blocks"), [(1, 2), (4, 1), (5, 2), (30, 1)])
def test_chosen_blocks_are_those_of_the_definition(block: int, blocks: int, causal: bool) -> None:
    q, k, v = sequences(23, 4, 4, 4, heads=2)
    maps = BlockTopk(Shape(2, 4, 99), block=block, blocks=blocks).weights(q, k, v, packed(23, causal))
    visible = chosen(q, k, block, blocks, causal=causal)
    expected = (q @ k.transpose(-1, -2) / 2).masked_fill(~visible, -torch.inf).softmax(-1)
    torch.testing.assert_close(maps, expected)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("block", "blocks"), [(7, 0), (16, 3), (64, 2), (200, 1), (1, 4)])
@pytest.mark.parametrize("length", [33, 257])
def test_gathered_blocks_equal_whole_maps_forward_and_backward(
    length: int, block: int, blocks: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = BlockTopk(Shape(4, 4, 300), block=block, blocks=blocks, key_heads=2)
    q, k, v = sequences(length, 4, 4, 4, heads=4)
    qkv = trainable([q, k[:, :2], v[:, :2]])
    valid = valid_tokens(length, slice(3), slice(length // 2, length // 2 + 5))
    assert_same_for_each(
        monkeypatch,
        block_topk,
        "PLAIN_UP_TO",
        (0, 10**9),
        lambda: with_gradients(mechanism(*qkv, Mask.of(valid, length, causal)).y.transpose(1, 2)[valid], qkv),
    )


def test_padding_does_not_change_the_choice_among_equal_blocks() -> None:
    mechanism = BlockTopk(Shape(heads=2, head_width=4, max_length=99), block=1, blocks=1)
    q, k, v = sequences(6, 4, 4, 4, rows=1, heads=2)
    q, k = (x[:, :, :1].expand(1, 2, 6, 4) for x in (q, k))
    alone = mechanism(q, k, v, packed(6)).y
    padded = [pad(x, (0, 0, 3, 0)) for x in (q, k, v)]
    mask = Mask.of(valid_tokens(9, slice(3)), 9, causal=True)
    torch.testing.assert_close(mechanism(*padded, mask).y[:, :, 3:], alone)
