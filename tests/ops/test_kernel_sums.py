"""Tests of linear attention with hand-written gradients against plain operations."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from helpers.tensors import assert_same_for_each, packed, valid_tokens, with_gradients
from torch import Tensor

from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.ops import fast_cpu, kernel_sums

CASES = [("linear", {}), ("performer", {"features": 12}), ("performer", {"kernel": "hyperbolic", "features": 9})]
WIDTH, HEADS = 12, 3


def build(word: str, **options: Any) -> MultiHead:
    torch.manual_seed(0)
    return MultiHead.build(word, WIDTH, HEADS, 300, **options).double()


@pytest.fixture
def apply(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return a mock that counts the calls of the fast form."""
    apply = Mock(wraps=kernel_sums._KernelSums.apply)
    monkeypatch.setattr(kernel_sums._KernelSums, "apply", apply)
    return apply


def outputs(layer: MultiHead, x: Tensor, mask: Mask, memory: Tensor | None = None) -> list[Tensor]:
    """Return the output for real tokens, the sums, and all gradients."""
    x = x.clone().requires_grad_()
    output = layer(x, mask, memory)
    sums, peak = output.state
    sums = sums if peak is None else sums * peak.exp().unsqueeze(-1)
    real = output.y if memory is not None else output.y[mask.valid.expand(len(x), -1)]
    return with_gradients([real, sums], [x, *layer.parameters()])


@pytest.mark.parametrize("padding", ["left", "right", "none"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("word", "options"), CASES)
@pytest.mark.parametrize("length", [1, 2, 28, 64, 65, 130, 200])
def test_self_attention_equals_plain_operations(
    length: int,
    word: str,
    options: dict[str, Any],
    causal: bool,
    padding: str,
    apply: Mock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, x = build(word, **options), torch.randn(2, length, WIDTH).double()
    pads = {"left": slice(length // 3), "right": slice(length - length // 3, None), "none": slice(0)}[padding]
    mask = Mask.of(valid_tokens(length, slice(0), pads), length, causal)
    assert_same_for_each(
        monkeypatch, fast_cpu, "PLAIN", (True, False), lambda: outputs(layer, x, mask), rtol=1e-8, atol=1e-10
    )
    apply.assert_called_once()


@pytest.mark.parametrize(("word", "options"), CASES)
def test_cross_attention_equals_plain_operations(
    word: str, options: dict[str, Any], apply: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = build(word, cross=True, **options)
    x, memory = torch.randn(2, 5, WIDTH).double(), torch.randn(2, 70, WIDTH).double()
    mask = Mask.cross(torch.arange(70) < torch.tensor([[70], [40]]), 5)
    assert_same_for_each(
        monkeypatch, fast_cpu, "PLAIN", (True, False), lambda: outputs(layer, x, mask, memory), rtol=1e-8, atol=1e-10
    )
    apply.assert_called_once()


@pytest.mark.parametrize(("word", "options"), CASES)
def test_two_parts_with_a_state_equal_one_pass(word: str, options: dict[str, Any]) -> None:
    layer, x = build(word, **options).eval(), torch.randn(2, 90, WIDTH).double()
    first = layer(x[:, :70], packed(70))
    later = layer(x[:, 70:], packed(90, start=70), state=first.state)
    torch.testing.assert_close(torch.cat((first.y, later.y), 1), layer(x, packed(90)).y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [4, 30])
def test_features_beyond_the_range_of_float32_are_shifted(scale: float, apply: Mock) -> None:
    layer, mask, x = build("performer").float(), packed(20), torch.randn(2, 20, WIDTH)
    assert layer(x, mask).y.isfinite().all()
    apply.assert_called_once()
    torch.nn.init.constant_(layer.k.bias, scale)  # long keys, and products with directions
    exact = layer.double()(x.double(), mask).y
    torch.testing.assert_close(layer.float()(x, mask).y.double(), exact, rtol=1e-3, atol=1e-3)
    assert (apply.call_count == 1) == (scale == 30)


def test_autocast_uses_plain_operations_and_second_derivatives_raise(apply: Mock) -> None:
    layer, x = build("linear").float(), torch.randn(2, 9, WIDTH, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x, packed(9))
    apply.assert_not_called()
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(layer(x, packed(9)).y.sum(), x, create_graph=True)
