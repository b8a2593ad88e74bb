"""Comparison with local-attention."""

import pytest
import torch
from helpers.peers import our_layer, peer, project_heads, tokens

from attnkit.attention import Mask

WINDOW = 8


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("word", ["local", "sparse"])
def test_local_is_equal_and_sparse_differs(word: str, causal: bool) -> None:
    """`sparse` includes further keys, so it shows that the comparison detects a difference."""
    layer = our_layer(word, **{"window" if word == "local" else "rate": WINDOW})
    q, k, v = project_heads(layer, tokens(2, 48))
    valid = torch.arange(48) < torch.tensor([[48], [37]])
    y = layer.mechanism(q, k, v, Mask.of(valid, 48, causal=causal)).y
    options = {"autopad": True, "use_rotary_pos_emb": False, "exact_windowsize": True}
    theirs = peer("local_attention").LocalAttention(WINDOW, causal=causal, **options).double().eval()
    expected = theirs(q, k, v, mask=valid)
    same = [torch.allclose(y[row, :, :n], expected[row, :, :n]) for row, n in ((0, 48), (1, 37))]
    assert same == [word == "local"] * 2
