"""Comparison with linformer."""

import torch
from helpers.peers import HEADS, WIDTH, no_padding, our_layer, peer, share, tokens


def test_outputs_are_equal_if_heads_share_a_projection() -> None:
    layer, x = our_layer("linformer", rank=5), tokens(2, 30)
    mechanism = layer.mechanism
    theirs = peer("linformer.linformer").LinformerSelfAttention(WIDTH, 64, k=5, heads=HEADS).double().eval()
    share(layer, q=theirs.to_q, k=theirs.to_k, v=theirs.to_v, o=theirs.to_out)
    with torch.no_grad():
        for own, their in ((mechanism.project_k, theirs.proj_k), (mechanism.project_v, theirs.proj_v)):
            own.copy_(own[:1].expand_as(own))
            their.copy_(own[0])
    torch.testing.assert_close(layer(x, no_padding(2, 30)).y, theirs(x))
