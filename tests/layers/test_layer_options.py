"""Options of the layer around a mechanism: convolutions, norms, gates, values of other layers."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit import mechanisms
from attnkit.attention import Mask
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.layers.positions import Rotary
from attnkit.mechanisms import facts
from attnkit.recipe.mechanism_registry import part


def made(word: str, **options: object) -> MultiHead:
    torch.manual_seed(2)
    layer = MultiHead.build(word, 16, 4, 64, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return layer


def inputs(length: int) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randn(2, length, 16, generator=generator).double()


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize(("gate", "width"), [("head", 1), ("element", 4)])
def test_an_output_gate_scales_what_the_heads_answer(gate: str, width: int, cross: bool) -> None:
    layer, x, memory = made("dot", output_gate=gate, cross=cross), inputs(5), inputs(7)
    mask = Mask.cross(torch.ones(2, 7, dtype=torch.bool), 5) if cross else Mask.packed(5, x.device, causal=True)
    source = memory if cross else x
    assert layer.gate is not None
    assert layer.v is not None
    maps = layer.weights(x, mask, memory if cross else None)
    heads = maps @ torch.unflatten(layer.v(source), -1, (4, 4)).transpose(1, 2)
    gates = torch.unflatten(layer.gate(x).sigmoid(), -1, (4, width)).transpose(1, 2)
    expected = layer.o((heads * gates).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, mask, memory if cross else None).y, expected)


EVERY = {"output_gate": "head", "output_norm": "rms", "short_conv": 3, "exclusive": True}


@pytest.mark.parametrize("word", mechanisms.names())
def test_every_mechanism_takes_the_options_of_layers(word: str) -> None:
    known, parts = facts(word), {}
    if known.composite:
        parts = {"parts": ("dot", "gaussian")}
    if known.layered:
        assert "output_gate" not in known.options
        parts = {"parts": ({"name": "dot", **EVERY}, "gaussian")}
    layer = MultiHead.build(word, 16, 4, 64, **(parts if known.layered else parts | EVERY))
    mask = Mask.packed(6, torch.device("cpu"), causal=not known.encoder)
    layer(inputs(6).float(), mask).y.square().sum().backward()
    assert layer.gate is not None
    around = [layer.exclusion, layer.gate.weight, *layer.convolutions.parameters()]
    for parameter in around:
        assert parameter is not None
        assert parameter.grad is not None
        assert parameter.grad.any()


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """SiLU of the sum over the last tokens of a row, one at a time."""
    y = torch.zeros_like(x)
    for t in range(x.shape[1]):
        for back in range(weight.shape[1]):
            if t >= back:
                y[:, t] += x[:, t - back] * weight[:, -1 - back]
    return F.silu(y)


def test_a_short_convolution_sees_the_tokens_before_and_no_pads() -> None:
    layer, x = made("gated-delta", short_conv=4, causal=True), inputs(9)
    q, k, v, *_ = layer.project(x, Mask.packed(9, x.device, causal=True))
    for name, found in (("q", q), ("k", k), ("v", v)):
        assert found is not None
        expected = convolved(getattr(layer, name)(x), layer.convolutions[name].weight)
        torch.testing.assert_close(found.transpose(1, 2).flatten(2), expected)
    # a hole between the calls, and garbage in it
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[0, 3:6], valid[1, :3] = False, False
    padded = torch.full((2, 12, 16), 99.0).double()
    padded[valid] = x.flatten(0, 1)
    first = layer(padded[:, :5], Mask.of(valid[:, :5], 5, True))
    second = layer(padded[:, 5:], Mask.of(valid, 7, True, 5), state=first.state)
    whole = layer(x, Mask.packed(9, x.device, causal=True)).y.flatten(0, 1)
    torch.testing.assert_close(torch.cat((first.y, second.y), 1)[valid], whole)


def test_the_answer_loses_what_lies_along_the_own_value() -> None:
    layer, plain, x = made("dot", exclusive=True, key_heads=2), made("dot", key_heads=2), inputs(6)
    plain.load_state_dict(layer.state_dict(), strict=False)
    mask = Mask.packed(6, x.device, causal=True)
    v = plain.project(x, mask).v
    assert v is not None
    assert layer.exclusion is not None
    v = v.repeat_interleave(2, 1)
    y = plain.weights(x, mask) @ v
    share = (y * v).sum(-1, keepdim=True) / v.square().sum(-1, keepdim=True)
    y = y - layer.exclusion.tanh()[:, None, None] * share * v
    torch.testing.assert_close(layer(x, mask).y, layer.o(y.transpose(1, 2).flatten(2)))


def test_heads_are_divided_by_their_root_mean_square_before_the_gate() -> None:
    layer, x = made("linear", output_norm="rms", output_gate="head"), inputs(6)
    mask = Mask.packed(6, x.device, causal=False)
    v = layer.project(x, mask).v
    assert v is not None
    assert layer.output_norm is not None
    assert layer.gate is not None
    y = (layer.weights(x, mask) @ v).transpose(1, 2)
    y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.output_norm.weight
    expected = layer.o((y * layer.gate(x).sigmoid()[..., None]).flatten(2))
    torch.testing.assert_close(layer(x, mask).y, expected)


def test_later_layers_add_the_values_of_the_first() -> None:
    first, later = (made("dot", value_residual=True, depth=depth) for depth in (0, 1))
    x, mask = inputs(6), Mask.packed(6, torch.device("cpu"), causal=True)
    values = first(x, mask).values
    assert first.value_gate is None
    assert later.value_gate is not None
    assert later.v is not None
    assert values is not None
    own = torch.unflatten(later.v(x), -1, (4, 4)).transpose(1, 2)
    v = own + later.value_gate[:, None, None] * values
    expected = later.o((later.weights(x, mask, first=values) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(later(x, mask, first=values).y, expected)
    with pytest.raises(UsageError, match="the first layer must return values"):
        later(x, mask)


def test_without_the_option_no_weights_are_added() -> None:
    assert {*MultiHead.build("scaled-dot", 8, 2, 9).state_dict()} == {
        f"{name}.{kind}" for name in "qkvo" for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("word", ["scaled-dot", "gaussian", "sigmoid", "local"])
def test_queries_and_keys_are_divided_by_their_root_mean_square(word: str) -> None:
    layer, x = made(word, qk_norm=True), inputs(6)
    q, k, *_ = layer.project(x, Mask.packed(6, x.device, causal=True))
    for part_, norm, linear in ((q, layer.q_norm, layer.q), (k, layer.k_norm, layer.k)):
        assert norm is not None
        assert linear is not None
        assert part_ is not None
        plain = torch.unflatten(linear(x), -1, (4, 4)).transpose(1, 2)
        expected = plain / (plain.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
        torch.testing.assert_close(part_, expected)


def test_rotary_positions_stay_relative_behind_the_norm() -> None:
    layer, x = made("scaled-dot", qk_norm=True, rotary=Rotary(4)), inputs(6)
    mask = Mask.packed(6, x.device, causal=False)
    shifted = mask._replace(q_pos=mask.q_pos + 9, k_pos=mask.k_pos + 9, layout="any")
    torch.testing.assert_close(layer.weights(x, shifted), layer.weights(x, mask))


@pytest.mark.parametrize("length", [6, 300])
def test_capped_scores_are_a_tangent_before_bias_and_softmax(length: int) -> None:
    layer, plain, x = made("scaled-dot", logit_cap=0.5), made("scaled-dot"), inputs(length)
    mask = Mask.packed(length, x.device, causal=True)
    q, k, *_ = plain.project(x, mask)
    assert q is not None
    assert k is not None
    scores = 0.5 * (q @ k.transpose(-1, -2) / 2 / 0.5).tanh()
    bias = torch.randn(1, 4, length, length).double()
    expected = (scores + bias).masked_fill(~mask.dense(), -torch.inf).softmax(-1)
    torch.testing.assert_close(layer.weights(x, mask, bias=bias), expected)
    assert plain.v is not None
    values = torch.unflatten(plain.v(x), -1, (4, 4)).transpose(1, 2)
    capped = scores.masked_fill(~mask.dense(), -torch.inf).softmax(-1) @ values
    expected = plain.o(capped.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, mask).y, expected)


def test_a_part_of_a_mixture_has_no_gate_of_its_own() -> None:
    assert "output_gate" not in part("dot", "mixture").options
    assert "output_gate" in part("dot", "interleaved").options
