"""Comparison with torch.nn.MultiheadAttention."""

import pytest
import torch
from helpers.peers import HEADS, WIDTH, no_padding, our_layer, share, tokens
from torch import nn

from attnkit.attention import Mask
from attnkit.layers import MultiHead

VALID = torch.arange(9) < torch.tensor([[9], [5], [1]])
FUTURE = torch.ones(9, 9).triu(1).bool()


def torch_layer(layer: MultiHead) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double().eval()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([x.weight for x in (layer.q, layer.k, layer.v)]))
        theirs.in_proj_bias.copy_(torch.cat([x.bias for x in (layer.q, layer.k, layer.v)]))
    share(layer, o=theirs.out_proj)
    return theirs


@pytest.mark.parametrize("causal", [False, True])
def test_outputs_and_maps_are_equal_with_padding_and_causal_masks(causal: bool) -> None:
    layer = our_layer("scaled-dot", bias=True)
    x, mask = tokens(3, 9), Mask.of(VALID, 9, causal=causal)
    options = {"attn_mask": FUTURE if causal else None, "average_attn_weights": False}
    y, maps = torch_layer(layer)(x, x, x, key_padding_mask=~VALID, **options)
    torch.testing.assert_close(layer(x, mask).y[VALID], y[VALID])
    torch.testing.assert_close(layer.weights(x, mask).transpose(1, 2)[VALID], maps.transpose(1, 2)[VALID])


def test_cross_attention_is_equal() -> None:
    layer = our_layer("scaled-dot", bias=True, cross=True)
    x, memory = tokens(3, 4), tokens(3, 9)
    y, _ = torch_layer(layer)(x, memory, memory, key_padding_mask=~VALID)
    torch.testing.assert_close(layer(x, Mask.cross(VALID, 4), memory=memory).y, y)


def test_gradients_are_equal() -> None:
    layer = our_layer("scaled-dot", bias=True)
    theirs = torch_layer(layer)
    x, y = tokens(3, 9).requires_grad_(), tokens(3, 9).requires_grad_()
    layer(x, no_padding(3, 9, causal=True)).y.square().sum().backward()
    theirs(y, y, y, attn_mask=FUTURE, need_weights=False)[0].square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(layer.q.weight.grad, theirs.in_proj_weight.grad[:WIDTH])
