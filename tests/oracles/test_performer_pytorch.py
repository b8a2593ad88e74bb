"""Comparison with performer-pytorch."""

import pytest
import torch
from helpers.peers import HEADS, WIDTH, no_padding, our_layer, peer, project_heads, share, tokens

FEATURES = 40
EPSILON = 1e-4
"""Number that performer-pytorch adds to each feature, and attnkit does not."""


def test_outputs_of_short_vectors_are_equal_up_to_epsilon() -> None:
    layer, x = our_layer("performer", features=FEATURES), tokens(2, 33) * 0.2
    options = {"heads": HEADS, "dim_head": WIDTH // HEADS, "nb_features": FEATURES}
    theirs = peer("performer_pytorch").SelfAttention(WIDTH, **options).double().eval()
    share(layer, q=theirs.to_q, k=theirs.to_k, v=theirs.to_v, o=theirs.to_out)
    theirs.fast_attention.projection_matrix.copy_(layer.mechanism.projection)
    y = layer(x, no_padding(2, 33)).y
    error = (theirs(x) - y).abs().max() / y.abs().max()
    assert 0 < error < 10 * EPSILON


@pytest.mark.parametrize(("kernel", "features"), [("softmax", FEATURES), ("relu", None), ("relu", FEATURES)], ids=str)
def test_features_give_equal_outputs(kernel: str, features: int | None) -> None:
    module = peer("performer_pytorch.performer_pytorch")
    layer = our_layer("performer", kernel=kernel, features=features)
    q, k, v = project_heads(layer, tokens(2, 33))
    options = {"projection_matrix": layer.mechanism.projection}
    if kernel == "relu":
        phi_q, phi_k = (module.generalized_kernel(x, **options) for x in (q, k))
    else:
        phi_q, phi_k = (module.softmax_kernel(x, is_query=x is q, eps=0, **options) for x in (q, k))
    y = layer.mechanism(q, k, v, no_padding(2, 33)).y
    torch.testing.assert_close(y, module.linear_attention(phi_q, phi_k, v))
