"""Tests of positions that act inside self-attention."""

import pytest
import torch
from helpers.tensors import packed, valid_tokens

from attnkit.attention import Mask
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.layers.positions import Alibi, Relative, Rotary, sinusoids


def test_alibi_slopes_halve_by_head_and_grow_with_distance() -> None:
    bias = Alibi(8)(Mask.of(valid_tokens(4, slice(0)), 4, True), torch.float64)
    assert bias.shape == (1, 8, 4, 4)
    assert bias[0, 0, 3].tolist() == [-1.5, -1.0, -0.5, 0.0]
    assert bias[0, 7, 3, 0].item() == -3 / 256


@pytest.mark.sampled(2)
@pytest.mark.parametrize("word", ["scaled-dot", "additive", "synthesizer-random", "local"])
@torch.no_grad()
def test_alibi_in_bfloat16_is_accurate_after_a_thousand_tokens(word: str) -> None:
    """The bias was rounded to 8 bits, so weights of distant keys were wrong by several percent."""
    length = 1000
    layer = MultiHead.build(word, 16, 1, length, **({"window": length} if word == "local" else {}))
    x = torch.randn(1, length, 16, generator=torch.Generator().manual_seed(1))
    for parameter in layer.parameters():  # small scores: what remains is the bias
        parameter.mul_(0.05)
    mask, alibi = packed(length), Alibi(1)
    layer, x = layer.bfloat16(), x.bfloat16()
    coarse = layer.weights(x, mask, bias=alibi(mask, x.dtype)).double()
    layer, x = layer.double(), x.double()
    exact = layer.weights(x, mask, bias=alibi(mask, x.dtype))
    large = exact > 1e-9
    assert large[:, :, -1].all()
    # a weight is rounded to 8 bits, and so are its own scores of at most 1
    assert ((coarse - exact).abs() / exact)[large].max() < 2**-7


@pytest.mark.parametrize("bias", [Alibi(4), Relative(4, True), Relative(4, False)])
def test_bias_depends_on_the_distance_without_padding(bias: torch.nn.Module) -> None:
    valid, padded = valid_tokens(5, slice(0)), valid_tokens(8, slice(3))
    whole = bias(Mask.of(valid, 5, True), torch.float64)
    torch.testing.assert_close(bias(Mask.of(padded, 8, True), torch.float64)[:, :, 3:, 3:], whole)
    torch.testing.assert_close(bias(Mask.of(valid, 1, True, 4), torch.float64), whole[:, :, 4:])


def test_relative_buckets_are_exact_near_and_shared_far() -> None:
    causal, both = Relative(2, True), Relative(2, False)
    behind = -torch.tensor([0, 1, 15, 16, 20, 64, 127, 128, 1000])
    assert causal.bucket(behind).tolist() == [0, 1, 15, 16, 17, 26, 31, 31, 31]
    assert both.bucket(torch.tensor([0, -1, 1, -1000, 1000])).tolist() == [0, 1, 17, 15, 31]


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    rotary = Rotary(8)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    positions = [torch.tensor([[p]]) for p in (3, 10, 103, 110)]
    near = rotary(q, positions[1]) @ rotary(k, positions[0]).transpose(-1, -2)
    far = rotary(q, positions[3]) @ rotary(k, positions[2]).transpose(-1, -2)
    torch.testing.assert_close(near, far)


def test_sinusoids_are_those_of_the_source() -> None:
    rows = sinusoids(torch.tensor([[0, 3]]), 4)
    angles = torch.tensor([[[0.0, 0.0], [3.0, 0.03]]])
    torch.testing.assert_close(rows, torch.cat((angles.sin(), angles.cos()), -1))


def test_rotary_positions_with_an_odd_head_width_raise() -> None:
    with pytest.raises(UsageError, match="even width, got 3"):
        Rotary(3)
