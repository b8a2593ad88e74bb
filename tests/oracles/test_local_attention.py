"""Against local-attention."""

from typing import Any

import pytest
import torch
from helpers.peers import everything, heads, ours, peer, tokens
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
    return tuple(heads(tokens(2, length), linear) for linear in (layer.q, layer.k, layer.v))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("word", ["local", "sparse"])
def test_answers_are_equal_where_their_blocks_are_full(word: str, causal: bool) -> None:
    """`sparse` is local and more, so it must differ: the oracle can tell."""
    rate = {"window": WINDOW} if word == "local" else {"rate": WINDOW}
    layer = ours(word, **rate)
    q, k, v = parts(layer, 48)
    valid = torch.arange(48) < torch.tensor([[48], [37]])
    y = layer.mechanism(q, k, v, Mask.of(valid, 48, causal=causal)).y
    expected = theirs(causal, exact_windowsize=True)(q, k, v, mask=valid)
    same = [torch.allclose(y[row, :, :n], expected[row, :, :n]) for row, n in ((0, 48), (1, 37))]
    assert same == [word == "local"] * 2


def test_their_last_block_attends_to_its_own_filling() -> None:
    """Rows are filled up with zeros to whole blocks, and without a mask these are seen."""
    layer = ours("local", window=WINDOW)
    q, k, v = parts(layer, 21)
    y = layer.mechanism(q, k, v, Mask.of(everything(2, 21), 21, causal=False)).y
    made = theirs(False, exact_windowsize=True)
    assert (made(q, k, v) - y)[:, :, 16:].abs().max() > 0.05
    torch.testing.assert_close(made(q, k, v, mask=everything(2, 21)), y)


def test_their_usual_window_depends_on_the_place_in_the_block() -> None:
    """Without `exact_windowsize` a query sees all of its block and the one before: 8 to 15 back."""
    layer = ours("local", window=WINDOW)
    q, k, _ = parts(layer, 48)
    identity = torch.eye(48, dtype=q.dtype).expand(2, 4, 48, 48)
    seen = theirs(True)(q, k, identity)[0, 0] > 0
    assert seen[16].sum() == WINDOW + 1
    assert seen[23].sum() == 2 * WINDOW
    exact = layer.mechanism.weights(q, k, k, Mask.of(everything(2, 48), 48, causal=True))[0, 0] > 0
    assert exact.sum(-1)[WINDOW:].unique().tolist() == [WINDOW + 1]


def test_a_query_that_sees_pads_only_averages_them_there() -> None:
    layer = ours("local", window=WINDOW)
    q, k, v = parts(layer, 48)
    valid = everything(2, 48)
    valid[1] = False
    y = theirs(False, exact_windowsize=True)(q, k, v, mask=valid)
    assert y[1].abs().max() > 0.05
    assert layer.mechanism(q, k, v, Mask.of(valid, 48, causal=False)).y[1].abs().max() == 0
