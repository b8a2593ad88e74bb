"""Comparison with nystrom-attention and the Nystromformer of transformers."""

from typing import Any

import pytest
import torch
from helpers.peers import WIDTH, no_padding, our_layer, peer, share, tokens
from torch import Tensor, nn

from attnkit.layers import MultiHead

LANDMARKS = 4


def nystrom_attention(layer: MultiHead, **options: Any) -> Any:
    """Return the layer of nystrom-attention with our weights."""
    heads = layer.heads
    theirs = peer("nystrom_attention").NystromAttention(
        WIDTH, dim_head=WIDTH // heads, heads=heads, num_landmarks=LANDMARKS, **options
    )
    theirs = theirs.double().eval()
    share(layer, o=theirs.to_out[0])
    with torch.no_grad():
        theirs.to_qkv.weight.copy_(torch.cat([x.weight for x in (layer.q, layer.k, layer.v)]))
        if theirs.residual:
            theirs.res_conv.weight.copy_(layer.mechanism.filter)
    return theirs


class Nystromformer(nn.Module):
    """The self-attention of transformers with our weights, and our output projection, which it lacks."""

    def __init__(self, layer: MultiHead, length: int, conv: int | None = None) -> None:
        super().__init__()
        module = peer("transformers.models.nystromformer.modeling_nystromformer")
        config = module.NystromformerConfig(
            hidden_size=WIDTH,
            num_attention_heads=layer.heads,
            num_landmarks=LANDMARKS,
            segment_means_seq_len=length,
            conv_kernel_size=conv or 1,
            attention_probs_dropout_prob=0.0,
        )
        self.inner = module.NystromformerSelfAttention(config).double().eval()
        share(layer, q=self.inner.query, k=self.inner.key, v=self.inner.value)
        with torch.no_grad():  # zeros, since its code requires a convolution
            self.inner.conv.weight.copy_(layer.mechanism.filter if conv else torch.zeros(()))
        self.o = layer.o

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.inner(x, None)[0])


@pytest.mark.parametrize("conv", [None, 5])
def test_one_matrix_is_equal_to_both(conv: int | None) -> None:
    """With one head and one sentence, since both scale the first inverse by a maximum over the whole batch."""
    layer, x = our_layer("nystrom", heads=1, landmarks=LANDMARKS, conv=conv), tokens(1, 20)
    y = layer(x, no_padding(1, 20)).y
    options = {"residual": conv is not None, "residual_conv_kernel": conv or 33}
    torch.testing.assert_close(nystrom_attention(layer, **options)(x), y)
    torch.testing.assert_close(Nystromformer(layer, 20, conv)(x), y)


def test_map_is_equal() -> None:
    layer, x = our_layer("nystrom", heads=1, landmarks=LANDMARKS), tokens(1, 20)
    _, maps = nystrom_attention(layer, residual=False)(x, return_attn=True)
    torch.testing.assert_close(layer.weights(x, no_padding(1, 20)), maps)


def test_as_many_landmarks_as_tokens_give_exact_softmax() -> None:
    layer, x = our_layer("nystrom", landmarks=LANDMARKS), tokens(2, LANDMARKS)
    exact = our_layer("scaled-dot")
    exact.load_state_dict(layer.state_dict())
    y = exact(x, no_padding(2, LANDMARKS)).y
    torch.testing.assert_close(layer(x, no_padding(2, LANDMARKS)).y, y)
    torch.testing.assert_close(Nystromformer(layer, LANDMARKS)(x), y)
    # nystrom-attention has no exact case, and its six steps do not always reach the inverse
    assert (nystrom_attention(layer, residual=False)(x) - y).abs().max() > 1e-3
