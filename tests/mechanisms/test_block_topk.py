"""Block attention with a top-k gate: which blocks are seen, and the two paths."""

import pytest
import torch

from attnkit.attention import Mask, Shape
from attnkit.mechanisms.block_topk import BlockTopk


def drawn(length: int, heads: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(2, heads, length, 4, generator=generator).double() for _ in "qkv"]


def seen(q: torch.Tensor, k: torch.Tensor, block: int, blocks: int, *, causal: bool) -> torch.Tensor:
    """The definition, query by query, for rows without pads."""
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
def test_the_choice_is_that_of_the_definition(block: int, blocks: int, causal: bool) -> None:
    q, k, v = drawn(23)
    made = BlockTopk(Shape(2, 4, 99), block=block, blocks=blocks)
    maps = made.weights(q, k, v, Mask.packed(23, q.device, causal=causal))
    visible = seen(q, k, block, blocks, causal=causal)
    expected = (q @ k.transpose(-1, -2) / 2).masked_fill(~visible, -torch.inf).softmax(-1)
    torch.testing.assert_close(maps, expected)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("block", "blocks"), [(7, 0), (16, 3), (64, 2), (200, 1), (1, 4)])
@pytest.mark.parametrize("length", [33, 257])
def test_gathered_blocks_are_the_dense_form_with_its_gradients(
    length: int, block: int, blocks: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = BlockTopk(Shape(4, 4, 300), block=block, blocks=blocks, key_heads=2)
    _, k, v = drawn(length)
    given = [x.requires_grad_() for x in (drawn(length, 4)[0], k, v)]
    valid = torch.ones(2, length, dtype=torch.bool)
    valid[0, :3], valid[1, length // 2 : length // 2 + 5] = False, False
    mask, found = Mask.of(valid, length, causal), []
    for limit in (0, 10**9):
        monkeypatch.setattr("attnkit.mechanisms.block_topk.PLAIN_UP_TO", limit)
        y = made(*given, mask).y.transpose(1, 2)[valid]
        found.append([y, *torch.autograd.grad(y.square().sum(), given)])
    torch.testing.assert_close(*found)


def test_equal_blocks_are_chosen_alike_whatever_the_padding() -> None:
    mechanism = BlockTopk(Shape(heads=2, head_width=4, max_length=99), block=1, blocks=1)
    q, k, v = (x[:1, :, :1].expand(1, 2, 6, 4) if n < 2 else x[:1] for n, x in enumerate(drawn(6)))
    valid = torch.ones(1, 6, dtype=torch.bool)
    alone = mechanism(q, k, v, Mask.of(valid, 6, causal=True)).y
    padded = [torch.nn.functional.pad(x, (0, 0, 3, 0)) for x in (q, k, v)]
    mask = Mask.of(torch.nn.functional.pad(valid, (3, 0)), 9, causal=True)
    torch.testing.assert_close(mechanism(*padded, mask).y[:, :, 3:], alone)
