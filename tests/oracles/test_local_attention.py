"""Against local-attention."""

from typing import Any

import pytest
import torch
from helpers.peers import our_layer, peer, project_heads, tokens
from torch import Tensor

from attnkit.attention import Mask
from attnkit.layers import MultiHead

WINDOW = 8


def theirs(causal: bool, **options: Any) -> Any:
    made = peer("local_attention").LocalAttention(
        WINDOW, causal=causal, autopad=True, use_rotary_pos_emb=False, **options
    )
    return made.double().eval()


def parts(layer: MultiHead, length: int) -> tuple[Tensor, ...]:
    """Queries, keys and values of each head."""
    return tuple(project_heads(tokens(2, length), linear) for linear in (layer.q, layer.k, layer.v))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("word", ["local", "sparse"])
def test_answers_are_equal_where_their_blocks_are_full(word: str, causal: bool) -> None:
    """`sparse` is local and more, so it must differ: the oracle can tell."""
    rate = {"window": WINDOW} if word == "local" else {"rate": WINDOW}
    layer = our_layer(word, **rate)
    q, k, v = parts(layer, 48)
    valid = torch.arange(48) < torch.tensor([[48], [37]])
    y = layer.mechanism(q, k, v, Mask.of(valid, 48, causal=causal)).y
    expected = theirs(causal, exact_windowsize=True)(q, k, v, mask=valid)
    same = [torch.allclose(y[row, :, :n], expected[row, :, :n]) for row, n in ((0, 48), (1, 37))]
    assert same == [word == "local"] * 2
