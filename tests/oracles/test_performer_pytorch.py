"""Against performer-pytorch."""

from typing import Any

import pytest
import torch
from helpers.peers import HEADS, WIDTH, everything, heads, ours, peer, share, tokens
from torch import Tensor

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
    layer, x = ours("performer", features=FEATURES), tokens(2, 33) * 0.2
    y = layer(x, Mask.of(everything(2, 33), 33, causal=False)).y
    error = (theirs(layer)(x) - y).abs().max() / y.abs().max()
    assert 0 < error < 10 * EPSILON


def test_long_vectors_vanish_in_their_epsilon() -> None:
    """|x|^2 / 2 is taken off after their maximum, so all features of long vectors are the epsilon.

    Their answer is then the mean of the values, whatever the query; ours still attends.
    """
    layer, x = ours("performer", features=FEATURES), tokens(2, 33) * 4
    assert layer.v is not None
    mean = layer.o(layer.v(x)).mean(1, keepdim=True).expand_as(x)
    torch.testing.assert_close(theirs(layer)(x), mean)
    y = layer(x, Mask.of(everything(2, 33), 33, causal=False)).y
    assert (y - mean).abs().max() > mean.abs().max()


def test_features_without_an_epsilon_give_equal_answers() -> None:
    module = peer("performer_pytorch.performer_pytorch")
    layer, x = ours("performer", features=FEATURES), tokens(2, 33)
    q, k, v = (heads(x, linear) for linear in (layer.q, layer.k, layer.v))
    directions = layer.mechanism.projection
    phi_q, phi_k = (
        module.softmax_kernel(t, projection_matrix=directions, is_query=query, eps=0)
        for t, query in ((q, True), (k, False))
    )
    y = layer.mechanism(q, k, v, Mask.of(everything(2, 33), 33, causal=False)).y
    torch.testing.assert_close(y, module.linear_attention(phi_q, phi_k, v))


@pytest.mark.parametrize("features", [None, FEATURES])
def test_the_relu_kernel_is_equal(features: int | None) -> None:
    module = peer("performer_pytorch.performer_pytorch")
    layer, x = ours("performer", kernel="relu", features=features), tokens(2, 33)
    q, k, v = (heads(x, linear) for linear in (layer.q, layer.k, layer.v))
    directions = layer.mechanism.projection
    phi = (module.generalized_kernel(t, projection_matrix=directions) for t in (q, k))
    y = layer.mechanism(q, k, v, Mask.of(everything(2, 33), 33, causal=False)).y
    torch.testing.assert_close(y, module.linear_attention(*phi, v))


def moved_by_the_last_key(layer: Any, x: Tensor, *mask: Mask) -> float:
    """How far earlier answers move when the last token becomes another one."""
    later = x.clone()
    later[:, -1] *= 6
    before, after = (layer(rows, *mask) for rows in (x, later))
    before, after = (y.y if mask else y for y in (before, after))
    return (before - after)[:, :-1].abs().max().item()


def test_their_causal_form_sees_the_future_by_its_global_maximum() -> None:
    """Keys are shifted by their maximum over all positions and an epsilon is added after it.

    A long later key so pushes the features of earlier ones towards the epsilon.  Ours are shifted
    by the maximum so far, and there is no epsilon.
    """
    layer, x = ours("performer", features=FEATURES), tokens(1, 12)
    mask = Mask.of(everything(1, 12), 12, causal=True)
    assert moved_by_the_last_key(theirs(layer, causal=True), x) > 1e-3
    assert moved_by_the_last_key(layer, x, mask) < 1e-12


def test_pads_stay_in_their_denominator() -> None:
    """They zero the values of pads only, so answers shrink with every pad; ours stay."""
    layer, x = ours("performer", features=FEATURES), tokens(1, 12)
    valid = torch.arange(20)[None] < 12
    longer = torch.cat((x, tokens(1, 8)), 1)
    plain = layer(x, Mask.of(everything(1, 12), 12, causal=False)).y
    padded = layer(longer, Mask.of(valid, 20, causal=False)).y[:, :12]
    torch.testing.assert_close(padded, plain)
    made = theirs(layer)
    without, with_pads = made(x), made(longer, mask=valid)[:, :12]
    assert (with_pads - without).abs().max() > 0.05 * without.abs().max()
