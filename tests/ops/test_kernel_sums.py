"""Linear attention by hand-written gradients and by plain operations."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.ops import fast_cpu, kernel_sums

CASES = [("linear", {}), ("performer", {"features": 12}), ("performer", {"kernel": "hyperbolic", "features": 9})]
WIDTH, HEADS = 12, 3


def layer_of(word: str, **options: Any) -> MultiHead:
    torch.manual_seed(0)
    return MultiHead.build(word, WIDTH, HEADS, 300, **options).double()


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls, taken = list[int](), kernel_sums._KernelSums.apply
    monkeypatch.setattr(kernel_sums._KernelSums, "apply", lambda *given: calls.append(1) or taken(*given))
    return calls


def answers(layer: MultiHead, x: Tensor, mask: Mask, memory: Tensor | None = None) -> list[Tensor]:
    """What the layer answers to real tokens, its sums, and all gradients."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    out = layer(x, mask, memory)
    sums, peak = out.state
    sums = sums if peak is None else sums * peak.exp().unsqueeze(-1)
    real = out.y if memory is not None else out.y[mask.valid.expand(len(x), -1)]
    (real.sin().sum() + sums.sin().sum()).backward()
    return [real, sums, x.grad, *(p.grad.clone() for p in layer.parameters())]


@pytest.mark.parametrize("side", ["left", "right", "none"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("word", "options"), CASES)
@pytest.mark.parametrize("length", [1, 2, 28, 64, 65, 130, 200])
def test_they_agree_forward_and_backward(
    length: int, word: str, options: dict[str, Any], causal: bool, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = layer_of(word, **options), torch.randn(2, length, WIDTH).double()
    valid = torch.ones(2, length, dtype=torch.bool)
    valid[1, {"left": slice(length // 3), "right": slice(length - length // 3, None), "none": slice(0)}[side]] = False
    calls, mask, found = count_calls(monkeypatch), Mask.of(valid, length, causal), []
    for plain in (True, False):
        monkeypatch.setattr(fast_cpu, "PLAIN", plain)
        found.append(answers(layer, x, mask))
    assert calls == [1]
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("word", "options"), CASES)
def test_another_sequence_is_read_alike(word: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of(word, cross=True, **options)
    x, memory = torch.randn(2, 5, WIDTH).double(), torch.randn(2, 70, WIDTH).double()
    valid = torch.arange(70) < torch.tensor([[70], [40]])
    calls, found = count_calls(monkeypatch), []
    for plain in (True, False):
        monkeypatch.setattr(fast_cpu, "PLAIN", plain)
        found.append(answers(layer, x, Mask.cross(valid, 5), memory))
    assert calls == [1]
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("word", "options"), CASES)
def test_its_state_is_carried_on(word: str, options: dict[str, Any]) -> None:
    layer, x = layer_of(word, **options).eval(), torch.randn(2, 90, WIDTH).double()
    whole = layer(x, Mask.packed(90, x.device, causal=True)).y
    first = layer(x[:, :70], Mask.packed(70, x.device, causal=True))
    later = layer(x[:, 70:], Mask.packed(90, x.device, causal=True, start=70), state=first.state)
    torch.testing.assert_close(torch.cat((first.y, later.y), 1), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [4, 30])
def test_features_that_float32_does_not_bear_are_shifted(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, mask = layer_of("performer").float(), Mask.packed(20, torch.device("cpu"), causal=True)
    calls, x = count_calls(monkeypatch), torch.randn(2, 20, WIDTH)
    y = layer(x, mask).y
    assert y.isfinite().all()
    assert calls == [1]
    torch.nn.init.constant_(layer.k.bias, scale)  # long keys, and products with directions
    exact = layer.double()(x.double(), mask).y
    torch.testing.assert_close(layer.float()(x, mask).y.double(), exact, rtol=1e-3, atol=1e-3)
    assert (len(calls) == 1) == (scale == 30)


def test_autocast_and_second_derivatives_are_left_to_plain_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, mask = layer_of("linear").float(), Mask.packed(9, torch.device("cpu"), causal=True)
    calls, x = count_calls(monkeypatch), torch.randn(2, 9, WIDTH, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x, mask)
    assert not calls
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(layer(x, mask).y.sum(), x, create_graph=True)
