"""Against linformer."""

from typing import Any

import torch
from helpers.peers import HEADS, WIDTH, no_padding, our_layer, peer, share, tokens

from attnkit.attention import Mask
from attnkit.layers import MultiHead

RANK = 5


def theirs(layer: MultiHead) -> Any:
    """Their layer with our weights; one projection serves all heads there."""
    made = peer("linformer.linformer").LinformerSelfAttention(WIDTH, 64, k=RANK, heads=HEADS)
    made = made.double().eval()
    share(layer, q=made.to_q, k=made.to_k, v=made.to_v, o=made.to_out)
    with torch.no_grad():
        for own in (layer.mechanism.project_k, layer.mechanism.project_v):
            own.copy_(own[:1].expand_as(own))
        made.proj_k.copy_(layer.mechanism.project_k[0])
        made.proj_v.copy_(layer.mechanism.project_v[0])
    return made


def test_answers_are_equal_where_heads_share_a_projection() -> None:
    layer, x = our_layer("linformer", rank=RANK), tokens(2, 30)
    expected = theirs(layer)(x)
    torch.testing.assert_close(layer(x, Mask.of(no_padding(2, 30), 30, causal=False)).y, expected)
