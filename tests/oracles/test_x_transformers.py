"""Against x-transformers: attention, its causal and grouped forms, and positions."""

from typing import Any

import pytest
import torch
from helpers.peers import HEADS, WIDTH, no_padding, our_layer, peer, share, tokens
from torch import Tensor

from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.layers.positions import Alibi, Relative, Rotary

SINGLE = 1e-6
"""Its softmax is taken in float32 whatever it is given."""


def theirs(layer: MultiHead, **options: Any) -> Any:
    made = peer("x_transformers").Attention(WIDTH, dim_head=WIDTH // HEADS, heads=HEADS, **options)
    made = made.double().eval()
    share(layer, q=made.to_q, k=made.to_k, v=made.to_v, o=made.to_out)
    return made


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=SINGLE, atol=SINGLE)


def test_grouped_keys_are_equal_once_heads_are_in_their_order() -> None:
    """Ours go to neighbouring heads, as in Ainslie et al. and in PyTorch; theirs to every second.

    A checkpoint of one order read in the other is scrambled, so the order matters.
    """
    layer = our_layer("scaled-dot", key_heads=2)
    made = theirs(layer, kv_heads=2)
    x, mask = tokens(2, 9), Mask.of(no_padding(2, 9), 9, causal=False)
    y = layer(x, mask).y
    assert not torch.allclose(made(x), y, atol=1e-2)
    order = torch.arange(WIDTH).view(2, 2, -1).transpose(0, 1).flatten()
    with torch.no_grad():
        made.to_q.weight.copy_(made.to_q.weight[order])
        made.to_out.weight.copy_(made.to_out.weight[:, order])
    close(y, made(x))
    q, k, v = (torch.randn(1, n, 5, 6).double() for n in (4, 2, 2))
    torch_order = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    mixed = layer.mechanism(q, k, v, Mask.of(no_padding(1, 5), 5, causal=False)).y
    torch.testing.assert_close(mixed, torch_order)


def test_one_head_of_keys_is_equal() -> None:
    layer = our_layer("scaled-dot", key_heads=1)
    x = tokens(2, 9)
    close(layer(x, Mask.of(no_padding(2, 9), 9, causal=True)).y, theirs(layer, kv_heads=1, causal=True)(x))


def test_scores_of_earlier_layers_are_added_alike() -> None:
    layer = our_layer("scaled-dot", residual_scores=True)
    x, mask = tokens(2, 9), Mask.of(no_padding(2, 9), 9, causal=False)
    prior = torch.randn(2, HEADS, 9, 9, generator=torch.Generator().manual_seed(0)).double()
    y, parts = theirs(layer)(x, prev_attn=prior, return_intermediates=True)
    out = layer(x, mask, prior=prior)
    close(out.y, y)
    assert out.scores is not None
    close(out.scores, parts.pre_softmax_attn)


@pytest.mark.parametrize("heads", [4, 8])
def test_alibi_is_equal_for_powers_of_two(heads: int) -> None:
    made = peer("x_transformers.x_transformers").AlibiPositionalBias(heads)
    mask = Mask.of(no_padding(1, 9), 9, causal=False)
    close(Alibi(heads)(mask, torch.float64)[0], made(9, 9).double())


@pytest.mark.parametrize("causal", [False, True])
def test_relative_buckets_are_equal(causal: bool) -> None:
    made = peer("x_transformers.x_transformers").RelativePositionBias(1.0, causal, heads=HEADS)
    own = Relative(HEADS, causal)
    with torch.no_grad():
        own.table.weight.copy_(made.relative_attention_bias.weight)
    mask = Mask.of(no_padding(1, 300), 300, causal=causal)
    seen = mask.dense()[0, 0]
    got, expected = own(mask, torch.float32)[0], made(300, 300)
    torch.testing.assert_close(got[:, seen], expected[:, seen])


def test_rotary_positions_are_equal_once_channels_are_in_their_order() -> None:
    """Ours turn halves, (x[i], x[i + D/2]), theirs neighbours; a permutation of the weights."""
    made = peer("x_transformers.x_transformers")
    x = torch.randn(2, HEADS, 9, 6, generator=torch.Generator().manual_seed(0)).double()
    order = torch.arange(6).view(3, 2).T.flatten()
    turned = made.apply_rotary_pos_emb(x, made.RotaryEmbedding(6).forward_from_seq_len(9)[0])
    got = Rotary(6)(x[..., order], torch.arange(9)[None])
    torch.testing.assert_close(got, turned[..., order], rtol=1e-5, atol=1e-5)


def test_selective_attention_is_equal() -> None:
    layer = our_layer("selective", causal=True)
    x = tokens(2, 9) * 3
    y = theirs(layer, causal=True, selective=True)(x)
    close(layer(x, Mask.of(no_padding(2, 9), 9, causal=True)).y, y)
    assert not torch.allclose(y, theirs(layer, causal=True)(x), atol=1e-3)
