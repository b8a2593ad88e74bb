"""Positions that act inside self-attention."""

import pytest
import torch
from torch import Tensor

from attnkit.attention import Mask
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.layers.positions import Alibi, Relative, Rotary, sinusoids


def valid(length: int, left: int = 0) -> Tensor:
    row = torch.ones(1, length, dtype=torch.bool)
    row[:, :left] = False
    return row


def test_alibi_slopes_halve_by_head_and_grow_with_distance() -> None:
    bias = Alibi(8)(Mask.of(valid(4), 4, True), torch.float64)
    assert bias.shape == (1, 8, 4, 4)
    assert bias[0, 0, 3].tolist() == [-1.5, -1.0, -0.5, 0.0]
    assert bias[0, 7, 3, 0].item() == -3 / 256


@pytest.mark.sampled(2)
@pytest.mark.parametrize("word", ["scaled-dot", "additive", "synthesizer-random", "local"])
def test_alibi_in_bfloat16_is_as_fine_as_its_weights_after_a_thousand_tokens(word: str) -> None:
    """The bias was rounded to 8 bits, so weights far behind were off by several percent."""
    length = 1000
    options = {"window": length} if word == "local" else {}
    layer = MultiHead.build(word, 16, 1, length, **options)
    x = torch.randn(1, length, 16, generator=torch.Generator().manual_seed(1))
    mask = Mask.packed(length, x.device, causal=True)
    with torch.no_grad():
        for parameter in layer.parameters():  # small scores: what is left is the bias
            parameter.mul_(0.05)
        layer, x = layer.bfloat16(), x.bfloat16()
        coarse = layer.weights(x, mask, bias=Alibi(1)(mask, x.dtype)).double()
        layer, x = layer.double(), x.double()
        exact = layer.weights(x, mask, bias=Alibi(1)(mask, x.dtype))
    seen = exact > 1e-9
    assert seen[:, :, -1].all()
    # a weight is rounded to 8 bits, and so are its own scores of at most 1
    assert ((coarse - exact).abs() / exact)[seen].max() < 2**-7


@pytest.mark.parametrize("kind", [Alibi(4), Relative(4, True), Relative(4, False)])
def test_a_bias_depends_on_the_distance_of_real_tokens(kind: torch.nn.Module) -> None:
    whole = kind(Mask.of(valid(5), 5, True), torch.float64)
    shifted = kind(Mask.of(valid(8, left=3), 8, True), torch.float64)
    torch.testing.assert_close(shifted[:, :, 3:, 3:], whole)
    step = kind(Mask.of(valid(5), 1, True, 4), torch.float64)
    torch.testing.assert_close(step, whole[:, :, 4:])


def test_relative_buckets_are_exact_near_and_shared_far() -> None:
    causal, both = Relative(2, True), Relative(2, False)
    behind = -torch.tensor([0, 1, 15, 16, 20, 64, 127, 128, 1000])
    assert causal.bucket(behind).tolist() == [0, 1, 15, 16, 17, 26, 31, 31, 31]
    assert both.bucket(behind[:2]).tolist() == [0, 1]
    assert both.bucket(-behind[1:2]).tolist() == [17]
    assert both.bucket(torch.tensor([-1000, 1000])).tolist() == [15, 31]


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    rotary = Rotary(8)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    at = [torch.tensor([[p]]) for p in (3, 10, 103, 110)]
    near = rotary(q, at[1]) @ rotary(k, at[0]).transpose(-1, -2)
    far = rotary(q, at[3]) @ rotary(k, at[2]).transpose(-1, -2)
    torch.testing.assert_close(near, far)


def test_sinusoids_are_those_of_the_source() -> None:
    rows = sinusoids(torch.tensor([[0, 3]]), 4)
    angles = torch.tensor([[[0.0, 0.0], [3.0, 0.03]]])
    torch.testing.assert_close(rows, torch.cat((angles.sin(), angles.cos()), -1))


def test_rotary_positions_refuse_heads_of_an_odd_width() -> None:
    with pytest.raises(UsageError, match="even width, got 3"):
        Rotary(3)
