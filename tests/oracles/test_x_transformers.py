"""Comparison with x-transformers: attention, causal and with grouped keys, and positions."""

from typing import Any

import pytest
import torch
from helpers.peers import HEADS, WIDTH, no_padding, our_layer, peer, share, tokens
from torch import Tensor

from attnkit.layers import MultiHead
from attnkit.layers.positions import Alibi, Relative, Rotary


def their_layer(layer: MultiHead, **options: Any) -> Any:
    theirs = peer("x_transformers").Attention(WIDTH, dim_head=WIDTH // HEADS, heads=HEADS, **options)
    theirs = theirs.double().eval()
    share(layer, q=theirs.to_q, k=theirs.to_k, v=theirs.to_v, o=theirs.to_out)
    return theirs


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Compare with the tolerance of float32, in which their softmax is always computed."""
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


def test_grouped_keys_are_equal_after_heads_are_reordered() -> None:
    """Our key heads serve neighboring heads, as in Ainslie et al. and in PyTorch; theirs serve every second head.

    The order matters because a checkpoint with one order gives wrong outputs if it is read in the other.
    """
    layer = our_layer("scaled-dot", key_heads=2)
    theirs = their_layer(layer, kv_heads=2)
    x = tokens(2, 9)
    y = layer(x, no_padding(2, 9)).y
    assert not torch.allclose(theirs(x), y, atol=1e-2)
    order = torch.arange(WIDTH).view(2, 2, -1).transpose(0, 1).flatten()
    with torch.no_grad():
        theirs.to_q.weight.copy_(theirs.to_q.weight[order])
        theirs.to_out.weight.copy_(theirs.to_out.weight[:, order])
    assert_close(y, theirs(x))
    q, k, v = (torch.randn(1, n, 5, 6).double() for n in (4, 2, 2))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(layer.mechanism(q, k, v, no_padding(1, 5)).y, expected)


def test_one_key_head_is_equal() -> None:
    layer, x = our_layer("scaled-dot", key_heads=1), tokens(2, 9)
    assert_close(layer(x, no_padding(2, 9, causal=True)).y, their_layer(layer, kv_heads=1, causal=True)(x))


def test_residual_scores_are_equal() -> None:
    layer, x = our_layer("scaled-dot", residual_scores=True), tokens(2, 9)
    prior = torch.randn(2, HEADS, 9, 9, generator=torch.Generator().manual_seed(0)).double()
    y, parts = their_layer(layer)(x, prev_attn=prior, return_intermediates=True)
    out = layer(x, no_padding(2, 9), prior=prior)
    assert_close(out.y, y)
    assert_close(out.scores, parts.pre_softmax_attn)


@pytest.mark.parametrize("heads", [4, 8])
def test_alibi_is_equal_for_powers_of_two(heads: int) -> None:
    theirs = peer("x_transformers.x_transformers").AlibiPositionalBias(heads)
    assert_close(Alibi(heads)(no_padding(1, 9), torch.float64)[0], theirs(9, 9).double())


@pytest.mark.parametrize("causal", [False, True])
def test_relative_buckets_are_equal(causal: bool) -> None:
    theirs = peer("x_transformers.x_transformers").RelativePositionBias(1.0, causal, heads=HEADS)
    ours = Relative(HEADS, causal)
    with torch.no_grad():
        ours.table.weight.copy_(theirs.relative_attention_bias.weight)
    mask = no_padding(1, 300, causal)
    visible = mask.dense()[0, 0]
    torch.testing.assert_close(ours(mask, torch.float32)[0][:, visible], theirs(300, 300)[:, visible])


def test_rotary_positions_are_equal_after_channels_are_reordered() -> None:
    """Ours rotate pairs (x[i], x[i + D/2]), theirs neighboring channels."""
    module = peer("x_transformers.x_transformers")
    x = torch.randn(2, HEADS, 9, 6, generator=torch.Generator().manual_seed(0)).double()
    order = torch.arange(6).view(3, 2).T.flatten()
    expected = module.apply_rotary_pos_emb(x, module.RotaryEmbedding(6).forward_from_seq_len(9)[0])
    rotated = Rotary(6)(x[..., order], torch.arange(9)[None])
    torch.testing.assert_close(rotated, expected[..., order], rtol=1e-5, atol=1e-5)


def test_selective_attention_is_equal() -> None:
    layer, x = our_layer("selective", causal=True), tokens(2, 9) * 3
    y = their_layer(layer, causal=True, selective=True)(x)
    assert_close(layer(x, no_padding(2, 9, causal=True)).y, y)
    assert not torch.allclose(y, their_layer(layer, causal=True)(x), atol=1e-3)
