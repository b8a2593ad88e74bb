"""Against nystrom-attention and the Nystromformer of transformers."""

from typing import Any

import pytest
import torch
from helpers.peers import WIDTH, no_padding, our_layer, peer, share, tokens
from torch import Tensor, nn

from attnkit.attention import Mask
from attnkit.layers import MultiHead

LANDMARKS = 4


def whole(rows: int, length: int) -> Mask:
    """No padding."""
    return Mask.of(no_padding(rows, length), length, causal=False)


def lucid(layer: MultiHead, **options: Any) -> Any:
    """The layer of nystrom-attention with our weights."""
    heads = layer.heads
    made = peer("nystrom_attention").NystromAttention(
        WIDTH, dim_head=WIDTH // heads, heads=heads, num_landmarks=LANDMARKS, **options
    )
    made = made.double().eval()
    share(layer, o=made.to_out[0])
    assert layer.q is not None
    assert layer.k is not None
    assert layer.v is not None
    with torch.no_grad():
        made.to_qkv.weight.copy_(torch.cat([x.weight for x in (layer.q, layer.k, layer.v)]))
        if made.residual:
            made.res_conv.weight.copy_(layer.mechanism.filter)
    return made


class Hugging(nn.Module):
    """The self-attention of transformers with our weights; it has no output projection."""

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
        with torch.no_grad():  # zeros, since its type does not let it be without
            self.inner.conv.weight.copy_(layer.mechanism.filter if conv else torch.zeros(()))
        self.o = layer.o

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        hidden = None
        if visible is not None:
            hidden = torch.zeros(visible.shape, dtype=x.dtype).masked_fill(~visible, -1e9)
            hidden = hidden[:, None, None, :]
        y: Tensor = self.o(self.inner(x, hidden)[0])
        return y


@pytest.mark.parametrize("conv", [None, 5])
def test_one_matrix_is_equal_to_both(conv: int | None) -> None:
    """One head and one sentence, since their start is shared by all matrices of a batch."""
    layer, x = our_layer("nystrom", heads=1, landmarks=LANDMARKS, conv=conv), tokens(1, 20)
    y = layer(x, whole(1, 20)).y
    options = {"residual": conv is not None, "residual_conv_kernel": conv or 33}
    torch.testing.assert_close(lucid(layer, **options)(x), y)
    torch.testing.assert_close(Hugging(layer, 20, conv)(x), y)


def test_the_map_is_equal() -> None:
    layer, x = our_layer("nystrom", heads=1, landmarks=LANDMARKS), tokens(1, 20)
    _, maps = lucid(layer, residual=False)(x, return_attn=True)
    torch.testing.assert_close(layer.weights(x, whole(1, 20)), maps)


def test_as_many_landmarks_as_tokens_are_exact_softmax() -> None:
    layer, x = our_layer("nystrom", landmarks=LANDMARKS), tokens(2, LANDMARKS)
    exact = our_layer("scaled-dot")
    exact.load_state_dict(layer.state_dict())
    y = exact(x, whole(2, LANDMARKS)).y
    torch.testing.assert_close(layer(x, whole(2, LANDMARKS)).y, y)
    torch.testing.assert_close(Hugging(layer, LANDMARKS)(x), y)
    # six steps do not always reach the inverse; nystrom-attention knows no exact case
    assert (lucid(layer, residual=False)(x) - y).abs().max() > 1e-3
