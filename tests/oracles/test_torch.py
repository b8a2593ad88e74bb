"""Against torch.nn.MultiheadAttention."""

import pytest
import torch
from helpers.peers import HEADS, WIDTH, no_padding, our_layer, share, tokens
from torch import Tensor, nn

from attnkit.attention import Mask
from attnkit.layers import MultiHead

VALID = torch.arange(9) < torch.tensor([[9], [5], [1]])


def theirs(layer: MultiHead) -> nn.MultiheadAttention:
    made = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double().eval()
    assert layer.q is not None
    assert layer.k is not None
    assert layer.v is not None
    with torch.no_grad():
        made.in_proj_weight.copy_(torch.cat([x.weight for x in (layer.q, layer.k, layer.v)]))
        made.in_proj_bias.copy_(torch.cat([x.bias for x in (layer.q, layer.k, layer.v)]))
    share(layer, o=made.out_proj)
    return made


def later(length: int) -> Tensor:
    """Their mask: True hides."""
    return torch.ones(length, length).triu(1).bool()


@pytest.mark.parametrize("causal", [False, True])
def test_answers_and_maps_are_equal_with_padding_and_causal_masks(causal: bool) -> None:
    layer = our_layer("scaled-dot", bias=True)
    x, mask = tokens(3, 9), Mask.of(VALID, 9, causal=causal)
    y, maps = theirs(layer)(
        x, x, x, key_padding_mask=~VALID, attn_mask=later(9) if causal else None, average_attn_weights=False
    )
    torch.testing.assert_close(layer(x, mask).y[VALID], y[VALID])
    torch.testing.assert_close(layer.weights(x, mask).transpose(1, 2)[VALID], maps.transpose(1, 2)[VALID])


def test_cross_attention_is_equal() -> None:
    layer = our_layer("scaled-dot", bias=True, cross=True)
    x, memory = tokens(3, 4), tokens(3, 9)
    y, _ = theirs(layer)(x, memory, memory, key_padding_mask=~VALID)
    torch.testing.assert_close(layer(x, Mask.cross(VALID, 4), memory=memory).y, y)


def test_gradients_are_equal() -> None:
    layer = our_layer("scaled-dot", bias=True)
    other = theirs(layer)
    x, y = tokens(3, 9).requires_grad_(), tokens(3, 9).requires_grad_()
    layer(x, Mask.of(no_padding(3, 9), 9, causal=True)).y.square().sum().backward()
    other(y, y, y, attn_mask=later(9), need_weights=False)[0].square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert layer.q is not None
    assert layer.q.weight.grad is not None
    assert other.in_proj_weight.grad is not None
    torch.testing.assert_close(layer.q.weight.grad, other.in_proj_weight.grad[:WIDTH])
