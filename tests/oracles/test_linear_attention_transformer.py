"""Comparison with linear-attention-transformer: efficient attention and its causal form."""

import pytest
import torch
from helpers.peers import no_padding, our_layer, peer, project_heads, tokens

from attnkit.attention import Mask

MODULE = "linear_attention_transformer.linear_attention_transformer"


@pytest.mark.parametrize("length", [12, 9])
def test_efficient_attention_is_equal_up_to_a_scale(length: int) -> None:
    """Theirs also multiplies softmaxed queries by D^(-1/2), so its rows sum to that and not to 1."""
    layer = our_layer("efficient")
    valid = torch.arange(12) < torch.tensor([[12], [length]])
    q, k, v = project_heads(layer, tokens(2, 12))
    y = layer.mechanism(q, k, v, Mask.of(valid, 12, causal=False)).y
    # theirs writes into its arguments
    expected = peer(MODULE).linear_attn(q.clone(), k.clone(), v.clone(), valid) * q.shape[-1] ** 0.5
    torch.testing.assert_close(y, expected)


def test_causal_form_is_equal_if_blocks_have_one_token() -> None:
    layer = our_layer("linear", feature_map="softmax")
    q, k, v = project_heads(layer, tokens(2, 64))
    y = layer.mechanism(q, k, v, no_padding(2, 64, causal=True)).y
    expected = peer(MODULE).causal_linear_attn(q.clone(), k.clone(), v.clone(), bucket_size=1)
    torch.testing.assert_close(y, expected)
