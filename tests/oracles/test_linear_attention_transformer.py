"""Against linear-attention-transformer: efficient attention and its causal stand-in."""

import pytest
import torch
from helpers.peers import no_padding, our_layer, peer, project_heads, tokens
from torch import Tensor

from attnkit.attention import Mask
from attnkit.layers import MultiHead

MODULE = "linear_attention_transformer.linear_attention_transformer"


def parts(layer: MultiHead, x: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values of each head; copies, since theirs writes into them."""
    return tuple(project_heads(x, linear).clone() for linear in (layer.q, layer.k, layer.v))


@pytest.mark.parametrize("length", [12, 9])
def test_efficient_attention_is_equal_but_for_their_scale(length: int) -> None:
    """They multiply softmaxed queries by D^(-1/2) as well, so their rows sum to that and not 1."""
    layer, x = our_layer("efficient"), tokens(2, 12)
    valid = torch.arange(12) < torch.tensor([[12], [length]])
    q, k, v = parts(layer, x)
    y = layer.mechanism(q, k, v, Mask.of(valid, 12, causal=False)).y
    expected = peer(MODULE).linear_attn(q, k, v, valid) * q.shape[-1] ** 0.5
    torch.testing.assert_close(y, expected)


def test_the_causal_stand_in_is_equal_where_theirs_sees_every_key() -> None:
    layer = our_layer("linear", feature_map="softmax")
    q, k, v = parts(layer, tokens(2, 64))
    y = layer.mechanism(q, k, v, Mask.of(no_padding(2, 64), 64, causal=True)).y
    causal = peer(MODULE).causal_linear_attn
    torch.testing.assert_close(causal(q, k, v, bucket_size=1), y)
