"""Against performer-pytorch."""

from typing import Any

import pytest
import torch
from helpers.peers import HEADS, WIDTH, no_padding, our_layer, peer, project_heads, share, tokens

from attnkit.attention import Mask
from attnkit.layers import MultiHead

FEATURES = 40
EPSILON = 1e-4
"""What performer-pytorch adds to each feature, and we do not."""


def theirs(layer: MultiHead, causal: bool = False) -> Any:
    """Their attention inside a layer, with our projections and random directions."""
    made = peer("performer_pytorch").SelfAttention(
        WIDTH, heads=HEADS, dim_head=WIDTH // HEADS, nb_features=FEATURES, causal=causal
    )
    made = made.double().eval()
    share(layer, q=made.to_q, k=made.to_k, v=made.to_v, o=made.to_out)
    made.fast_attention.projection_matrix.copy_(layer.mechanism.projection)
    return made


def test_answers_are_equal_but_for_their_epsilon_where_vectors_are_short() -> None:
    layer, x = our_layer("performer", features=FEATURES), tokens(2, 33) * 0.2
    y = layer(x, Mask.of(no_padding(2, 33), 33, causal=False)).y
    error = (theirs(layer)(x) - y).abs().max() / y.abs().max()
    assert 0 < error < 10 * EPSILON


def test_features_without_an_epsilon_give_equal_answers() -> None:
    module = peer("performer_pytorch.performer_pytorch")
    layer, x = our_layer("performer", features=FEATURES), tokens(2, 33)
    q, k, v = (project_heads(x, linear) for linear in (layer.q, layer.k, layer.v))
    directions = layer.mechanism.projection
    phi_q, phi_k = (
        module.softmax_kernel(t, projection_matrix=directions, is_query=query, eps=0)
        for t, query in ((q, True), (k, False))
    )
    y = layer.mechanism(q, k, v, Mask.of(no_padding(2, 33), 33, causal=False)).y
    torch.testing.assert_close(y, module.linear_attention(phi_q, phi_k, v))


@pytest.mark.parametrize("features", [None, FEATURES])
def test_the_relu_kernel_is_equal(features: int | None) -> None:
    module = peer("performer_pytorch.performer_pytorch")
    layer, x = our_layer("performer", kernel="relu", features=features), tokens(2, 33)
    q, k, v = (project_heads(x, linear) for linear in (layer.q, layer.k, layer.v))
    directions = layer.mechanism.projection
    phi = (module.generalized_kernel(t, projection_matrix=directions) for t in (q, k))
    y = layer.mechanism(q, k, v, Mask.of(no_padding(2, 33), 33, causal=False)).y
    torch.testing.assert_close(y, module.linear_attention(*phi, v))
