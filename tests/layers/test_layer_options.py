"""Options of the layer around a mechanism: output gates, and norms of queries and keys."""

import math

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
    mask = (
        Mask.cross(torch.ones(2, 7, dtype=torch.bool), 5)
        if cross
        else Mask.packed(5, x.device, causal=True)
    )
    source = memory if cross else x
    assert layer.gate is not None
    assert layer.v is not None
    maps = layer.weights(x, mask, memory if cross else None)
    heads = maps @ torch.unflatten(layer.v(source), -1, (4, 4)).transpose(1, 2)
    gates = torch.unflatten(layer.gate(x).sigmoid(), -1, (4, width)).transpose(1, 2)
    expected = layer.o((heads * gates).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, mask, memory if cross else None).y, expected)


@pytest.mark.parametrize("word", mechanisms.names())
def test_every_mechanism_takes_an_output_gate(word: str) -> None:
    known = facts(word)
    parts = {"parts": ({"name": "dot"}, "gaussian")} if known.composite else {}
    if known.layered:
        assert "output_gate" not in known.options
        parts = {"parts": ({"name": "dot", "output_gate": "head"}, "gaussian")}
    options = parts if known.layered else parts | {"output_gate": "head"}
    layer = MultiHead.build(word, 16, 4, 64, **options)
    assert layer.gate is not None
    assert layer.gate.out_features == 4
    mask = Mask.packed(6, torch.device("cpu"), causal=not known.encoder)
    layer(inputs(6).float(), mask).y.sum().backward()
    assert layer.gate.weight.grad is not None
    assert layer.gate.weight.grad.any()


def test_without_the_option_no_weights_are_added() -> None:
    assert {*MultiHead.build("scaled-dot", 8, 2, 9).state_dict()} == {
        f"{name}.{kind}" for name in "qkvo" for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("word", ["scaled-dot", "gaussian", "sigmoid", "local"])
def test_queries_and_keys_are_divided_by_their_root_mean_square(word: str) -> None:
    layer, x = made(word, qk_norm=True), inputs(6)
    q, k, _ = layer._project(x, Mask.packed(6, x.device, causal=True), None)
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
    q, k, _ = plain._project(x, mask, None)
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


def test_a_cap_far_above_the_scores_changes_little() -> None:
    x, mask = inputs(6), Mask.packed(6, torch.device("cpu"), causal=True)
    capped, plain = made("scaled-dot", logit_cap=1e6)(x, mask).y, made("scaled-dot")(x, mask).y
    torch.testing.assert_close(capped, plain)


@pytest.mark.parametrize(
    ("word", "options", "message"),
    [
        ("dot", {"output_gate": "heads"}, "output_gate must be one of head, element"),
        ("linear", {"qk_norm": True}, "no option 'qk_norm'"),
        ("synthesizer-dense", {"qk_norm": True}, "qk_norm needs queries and keys"),
        ("dot", {"qk_norm": True, "key_norm": True}, "in place of key_norm"),
        ("dot", {"logit_cap": 0.0}, "logit_cap must be a number > 0"),
        ("dot", {"logit_cap": math.inf}, "logit_cap must be a number > 0"),
    ],
)
def test_what_cannot_be_is_refused(word: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MultiHead.build(word, 8, 2, 9, **options)


def test_a_part_of_a_mixture_has_no_gate_of_its_own() -> None:
    assert "output_gate" not in part("dot", "mixture").options
    assert "output_gate" in part("dot", "interleaved").options


def test_a_gate_is_half_open_at_zero() -> None:
    torch.manual_seed(0)
    layer = MultiHead.build("linear", 8, 2, 9, output_gate="element")
    plain = MultiHead.build("linear", 8, 2, 9)
    plain.load_state_dict(layer.state_dict(), strict=False)
    assert layer.gate is not None
    torch.nn.init.zeros_(layer.gate.weight)
    x, mask = torch.randn(1, 5, 8), Mask.packed(5, torch.device("cpu"), causal=False)
    found, whole = (F.linear(one(x, mask).y, torch.eye(8)) for one in (layer, plain))
    torch.testing.assert_close(found, whole / 2)
