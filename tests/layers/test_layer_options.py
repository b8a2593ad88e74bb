"""Tests of the options of the layer around a mechanism: convolutions, norms, gates, values of other layers."""

from typing import Any

import pytest
import torch
from helpers.tensors import packed, valid_tokens
from torch import Tensor
from torch.nn import functional as F

from attnkit import mechanisms
from attnkit.attention import Mask
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.layers.positions import Rotary
from attnkit.mechanisms import facts
from attnkit.recipe.mechanism_registry import part


def build(word: str, **options: object) -> Any:
    torch.manual_seed(2)
    layer = MultiHead.build(word, 16, 4, 64, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return layer


def inputs(length: int) -> Tensor:
    return torch.randn(2, length, 16, generator=torch.Generator().manual_seed(length)).double()


def heads_of(projection: Any, x: Tensor, width: int = 4) -> Tensor:
    """Return the projection of x with its heads as a dimension, [B, H, T, width]."""
    return projection(x).unflatten(-1, (4, width)).transpose(1, 2)


def output(layer: Any, heads: Tensor) -> Tensor:
    """Return the output projection of the outputs of heads, [B, H, T, D]."""
    return layer.o(heads.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize(("gate", "width"), [("head", 1), ("element", 4)])
def test_output_gate_scales_the_outputs_of_heads(gate: str, width: int, cross: bool) -> None:
    layer, x, memory = build("dot", output_gate=gate, cross=cross), inputs(5), inputs(7) if cross else None
    mask = Mask.cross(torch.ones(2, 7, dtype=torch.bool), 5) if cross else packed(5)
    heads = layer.weights(x, mask, memory) @ heads_of(layer.v, x if memory is None else memory)
    expected = output(layer, heads * heads_of(layer.gate, x, width).sigmoid())
    torch.testing.assert_close(layer(x, mask, memory).y, expected)


@pytest.mark.parametrize("word", mechanisms.names())
def test_every_mechanism_accepts_layer_options(word: str) -> None:
    spec = facts(word)
    options: dict[str, Any] = {"output_gate": "head", "output_norm": "rms", "short_conv": 3, "exclusive": True}
    if spec.layered:
        assert "output_gate" not in spec.options
        options = {"parts": ({"name": "dot", **options}, "gaussian")}
    elif spec.composite:
        options["parts"] = ("dot", "gaussian")
    layer: Any = MultiHead.build(word, 16, 4, 64, **options)
    layer(inputs(6).float(), packed(6, causal=not spec.encoder)).y.square().sum().backward()
    for parameter in (layer.exclusion, layer.gate.weight, *layer.convolutions.parameters()):
        assert parameter.grad.any()


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """Return the SiLU of the sum over the last tokens of a row, computed one token at a time."""
    y = torch.zeros_like(x)
    for t in range(x.shape[1]):
        for back in range(min(weight.shape[1], t + 1)):
            y[:, t] += x[:, t - back] * weight[:, -1 - back]
    return F.silu(y)


def test_short_convolution_reads_earlier_tokens_and_skips_padding() -> None:
    layer, x = build("gated-delta", short_conv=4, causal=True), inputs(9)
    for name, projected in zip("qkv", layer.project(x, packed(9)), strict=False):
        expected = convolved(getattr(layer, name)(x), layer.convolutions[name].weight)
        torch.testing.assert_close(projected.transpose(1, 2).flatten(2), expected)
    # padding at the boundary of two calls, with other values in it
    valid = valid_tokens(12, slice(3, 6), slice(3))
    padded = torch.full((2, 12, 16), 99.0).double()
    padded[valid] = x.flatten(0, 1)
    first = layer(padded[:, :5], Mask.of(valid[:, :5], 5, True))
    second = layer(padded[:, 5:], Mask.of(valid, 7, True, 5), state=first.state)
    whole = layer(x, packed(9)).y.flatten(0, 1)
    torch.testing.assert_close(torch.cat((first.y, second.y), 1)[valid], whole)


def test_exclusive_subtracts_the_part_along_the_own_value() -> None:
    layer, plain, x = build("dot", exclusive=True, key_heads=2), build("dot", key_heads=2), inputs(6)
    plain.load_state_dict(layer.state_dict(), strict=False)
    v = plain.project(x, packed(6)).v.repeat_interleave(2, 1)
    y = plain.weights(x, packed(6)) @ v
    share = (y * v).sum(-1, keepdim=True) / v.square().sum(-1, keepdim=True)
    y = y - layer.exclusion.tanh()[:, None, None] * share * v
    torch.testing.assert_close(layer(x, packed(6)).y, output(layer, y))


def test_output_norm_is_the_root_mean_square_before_the_gate() -> None:
    layer, x = build("linear", output_norm="rms", output_gate="head"), inputs(6)
    mask = packed(6, causal=False)
    y = layer.weights(x, mask) @ layer.project(x, mask).v
    y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.output_norm.weight
    expected = output(layer, y * heads_of(layer.gate, x, 1).sigmoid())
    torch.testing.assert_close(layer(x, mask).y, expected)


def test_value_residual_adds_the_values_of_the_first_layer() -> None:
    first, later = (build("dot", value_residual=True, depth=depth) for depth in (0, 1))
    x, mask = inputs(6), packed(6)
    values = first(x, mask).values
    assert first.value_gate is None
    v = heads_of(later.v, x) + later.value_gate[:, None, None] * values
    expected = output(later, later.weights(x, mask, first=values) @ v)
    torch.testing.assert_close(later(x, mask, first=values).y, expected)
    with pytest.raises(UsageError, match="the first layer must return values"):
        later(x, mask)


def test_layer_without_options_has_no_further_weights() -> None:
    assert {*MultiHead.build("scaled-dot", 8, 2, 9).state_dict()} == {
        f"{name}.{kind}" for name in "qkvo" for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("word", ["scaled-dot", "gaussian", "sigmoid", "local"])
def test_qk_norm_divides_by_the_root_mean_square(word: str) -> None:
    layer, x = build(word, qk_norm=True), inputs(6)
    projected = layer.project(x, packed(6))
    for found, norm, projection in ((projected.q, layer.q_norm, layer.q), (projected.k, layer.k_norm, layer.k)):
        plain = heads_of(projection, x)
        expected = plain / (plain.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
        torch.testing.assert_close(found, expected)


def test_rotary_positions_are_relative_after_qk_norm() -> None:
    layer, x, mask = build("scaled-dot", qk_norm=True, rotary=Rotary(4)), inputs(6), packed(6, causal=False)
    shifted = mask._replace(q_pos=mask.q_pos + 9, k_pos=mask.k_pos + 9, layout="any")
    torch.testing.assert_close(layer.weights(x, shifted), layer.weights(x, mask))


@pytest.mark.parametrize("length", [6, 300])
def test_logit_cap_is_a_tanh_before_bias_and_softmax(length: int) -> None:
    layer, plain, x = build("scaled-dot", logit_cap=0.5), build("scaled-dot"), inputs(length)
    mask = packed(length)
    q, k, *_ = plain.project(x, mask)
    scores = 0.5 * (q @ k.transpose(-1, -2) / 2 / 0.5).tanh()
    bias = torch.randn(1, 4, length, length).double()
    expected = (scores + bias).masked_fill(~mask.dense(), -torch.inf).softmax(-1)
    torch.testing.assert_close(layer.weights(x, mask, bias=bias), expected)
    heads = scores.masked_fill(~mask.dense(), -torch.inf).softmax(-1) @ heads_of(plain.v, x)
    torch.testing.assert_close(layer(x, mask).y, output(plain, heads))


def test_part_of_a_mixture_has_no_output_gate() -> None:
    assert "output_gate" not in part("dot", "mixture").options
    assert "output_gate" in part("dot", "interleaved").options
