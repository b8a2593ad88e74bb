"""The linear layer against torch's, in every situation that picks a product."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit.ops import fast_cpu, onednn
from attnkit.ops.onednn import MIN_WORK, Linear


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that oneDNN's product is given."""
    if fast_cpu.operator(fast_cpu.PRODUCT) is None:
        pytest.skip("this torch has no oneDNN operator for linear layers")
    seen: list[tuple[int, ...]] = []
    real = onednn.onednn_product

    def counted(x: Tensor, *rest: Tensor | None) -> Tensor:
        seen.append(tuple(x.shape))
        return real(x, *rest)

    monkeypatch.setattr(onednn, "onednn_product", counted)
    return seen


@pytest.mark.parametrize("shape", [(1400,), (3, 500), (20, 5, 20), (1500, 1), (0,), (1,), (7,)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_answers_are_those_of_torch(shape: tuple[int, ...], bias: bool) -> None:
    layer, x = Linear(48, 33, bias), torch.randn(*shape, 48)
    with torch.no_grad():
        y = layer(x)
    assert y.shape == (*shape, 33)
    exact = F.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
    torch.testing.assert_close(y.double(), exact, atol=1e-5, rtol=1e-5)


def test_strided_inputs_are_read_right() -> None:
    layer = Linear(48, 33)
    x = torch.randn(48, 7, 900).transpose(0, 2)[::3]
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))


def test_many_rows_without_grad_take_the_fast_product(calls: list, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = MIN_WORK // 64
    monkeypatch.setattr(onednn, "WIDER", True)
    layer, x = Linear(8, 8), torch.randn(2, rows, 8)
    with torch.no_grad():
        layer(x)
    with torch.inference_mode():
        layer(x[0])
        layer(x[0, 1:])
    assert calls == [(2, rows, 8), (rows, 8)]
    monkeypatch.setattr(onednn, "WIDER", False)
    with torch.no_grad():
        layer(x)
    assert len(calls) == 2


def test_few_trained_rows_and_other_types_take_torch_s_product(calls: list) -> None:
    layer, x = Linear(8, 8), torch.randn(MIN_WORK // 64, 8)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        assert layer.double()(x.double()).dtype == torch.float64
        assert layer.to("meta")(x.to("meta")).is_meta
    assert calls == []


@pytest.mark.parametrize("frozen", ["", "x", "weight", "bias", "weight bias"])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_many_rows_are_those_of_torch(
    bias: bool, frozen: str, calls: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "MIN_TRAINING_WORK", 1)
    layer = Linear(48, 33, bias)
    x = torch.randn(33, 5, 48).transpose(0, 1).requires_grad_("x" not in frozen.split())
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name not in frozen.split())
    gradient = torch.randn(5, 1, 33).expand(5, 33, 33)
    wanted = [one for one in (x, *layer.parameters()) if one.requires_grad]
    if not wanted:
        return
    found = torch.autograd.grad(layer(x), wanted, gradient)
    assert calls
    plain = torch.autograd.grad(F.linear(x, layer.weight, layer.bias), wanted, gradient)
    for own, other in zip(found, plain, strict=True):
        assert own.layout == torch.strided
        torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-5)


def test_second_derivatives_are_those_of_torch(calls: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "MIN_TRAINING_WORK", 1)
    layer, x = Linear(6, 4), torch.randn(3, 6).requires_grad_()
    found = []
    for y in (layer(x), F.linear(x, layer.weight, layer.bias)):
        wanted = [x, *layer.parameters()]
        first = torch.autograd.grad(y.pow(3).sum(), wanted, create_graph=True)
        total = sum(gradient.square().sum() for gradient in first)
        found.append(torch.autograd.grad(total, wanted))
    assert calls
    torch.testing.assert_close(*found, atol=1e-3, rtol=1e-4)
