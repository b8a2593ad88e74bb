"""Tests of the linear layer against torch's, in every situation that chooses a product."""

from unittest.mock import Mock

import pytest
import torch
from torch.nn import functional as F

from attnkit.ops import fast_cpu, onednn
from attnkit.ops.onednn import MIN_WORK, Linear


@pytest.fixture
def product(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return a mock that records the calls of oneDNN's product."""
    if fast_cpu.operator(fast_cpu.PRODUCT) is None:
        pytest.skip("this torch has no oneDNN operator for linear layers")
    monkeypatch.setattr(onednn, "onednn_product", product := Mock(wraps=onednn.onednn_product))
    return product


@pytest.mark.parametrize("shape", [(1400,), (3, 500), (20, 5, 20), (1500, 1), (0,), (1,), (7,)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_outputs_equal_those_of_torch(shape: tuple[int, ...], bias: bool) -> None:
    layer, x = Linear(48, 33, bias), torch.randn(*shape, 48)
    expected = F.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
    torch.testing.assert_close(layer(x).double(), expected, atol=1e-5, rtol=1e-5)


def test_strided_inputs_are_read_correctly() -> None:
    layer, x = Linear(48, 33), torch.randn(48, 7, 900).transpose(0, 2)[::3]
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))


@torch.no_grad()
def test_many_rows_without_grad_use_the_fast_product(product: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = MIN_WORK // 64
    monkeypatch.setattr(onednn, "WIDER", True)
    layer, x = Linear(8, 8), torch.randn(2, rows, 8)
    layer(x)
    with torch.inference_mode():
        layer(x[0])
        layer(x[0, 1:])
    assert [call.args[0].shape for call in product.call_args_list] == [(2, rows, 8), (rows, 8)]
    monkeypatch.setattr(onednn, "WIDER", False)
    layer(x)
    assert product.call_count == 2


def test_few_trained_rows_and_other_types_use_the_product_of_torch(product: Mock) -> None:
    layer, x = Linear(8, 8), torch.randn(MIN_WORK // 64, 8)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        assert layer.double()(x.double()).dtype == torch.float64
        assert layer.to("meta")(x.to("meta")).is_meta
    product.assert_not_called()


@pytest.mark.parametrize("frozen", ["", "x", "weight", "bias", "weight bias"])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_many_rows_equal_those_of_torch(
    bias: bool, frozen: str, product: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "MIN_TRAINING_WORK", 1)
    layer = Linear(48, 33, bias)
    x = torch.randn(33, 5, 48).transpose(0, 1).requires_grad_("x" not in frozen.split())
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name not in frozen.split())
    inputs = [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
    grad_output = torch.randn(5, 1, 33).expand(5, 33, 33)
    gradients = torch.autograd.grad(layer(x), inputs, grad_output)
    product.assert_called()
    expected = torch.autograd.grad(F.linear(x, layer.weight, layer.bias), inputs, grad_output)
    assert all(gradient.layout == torch.strided for gradient in gradients)
    torch.testing.assert_close(gradients, expected, atol=1e-4, rtol=1e-5)


def test_second_derivatives_equal_those_of_torch(product: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "MIN_TRAINING_WORK", 1)
    layer, x = Linear(6, 4), torch.randn(3, 6).requires_grad_()
    inputs, results = [x, *layer.parameters()], []
    for y in (layer(x), F.linear(x, layer.weight, layer.bias)):
        first = torch.autograd.grad(y.pow(3).sum(), inputs, create_graph=True)
        results.append(torch.autograd.grad(sum(gradient.square().sum() for gradient in first), inputs))
    product.assert_called()
    torch.testing.assert_close(*results, atol=1e-3, rtol=1e-4)
