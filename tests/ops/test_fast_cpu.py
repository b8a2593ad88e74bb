"""Tests of the conditions of the fast forms, and of torch versions that lack a private operator."""

import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers.tensors import with_gradients
from torch import Tensor
from torch.nn import functional as F

from attnkit.ops import fast_cpu, onednn
from attnkit.ops.fast_cpu import operator, usable

OPERATORS = (
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward",
    "mkldnn._linear_pointwise",
    "aten.mkldnn_linear_backward_weights",
)


class Without:
    """torch.ops of a version that lacks one operator."""

    def __init__(self, inner: Any, missing: str) -> None:
        self._inner, (self._first, _, self._rest) = inner, missing.partition(".")

    def __getattr__(self, name: str) -> Any:
        if name != self._first:
            return getattr(self._inner, name)
        if not self._rest:
            raise AttributeError(f"no operator {name}")
        return Without(getattr(self._inner, name), self._rest)


@pytest.fixture(params=OPERATORS)
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Hide an operator of torch during the test; return its name."""
    monkeypatch.setattr(torch, "ops", Without(torch.ops, request.param))
    operator.cache_clear()
    yield request.param
    monkeypatch.undo()
    operator.cache_clear()


def import_again(module: str) -> ModuleType:
    """Return a second copy of a module, as an import would run it now."""
    spec: Any = importlib.util.find_spec(module)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def test_this_version_of_torch_has_all_operators() -> None:
    names = {getattr(fast_cpu, name) for name in ("FLASH", "FLASH_BACKWARD", "PRODUCT", "WEIGHT_GRADIENTS")}
    assert all(operator(name) is not None for name in names)
    assert {".".join(name.split(".")[:2]) for name in names} == set(OPERATORS)


def test_modules_can_be_imported_without_an_operator(missing: str) -> None:
    assert operator(missing) is None
    for name in ("ops.fast_cpu", "ops.onednn", "ops.block_sparse", "mechanisms.sink"):
        import_again(f"attnkit.{name}")


@pytest.mark.parametrize("trained", [False, True])
def test_linear_layers_are_correct_without_an_operator(
    trained: bool, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MIN_WORK", "WIDER", "MIN_TRAINING_WORK"):
        monkeypatch.setattr(onednn, name, 1)
    layer, x = onednn.Linear(48, 33), torch.randn(5, 7, 48).requires_grad_(trained)
    with torch.set_grad_enabled(trained):
        y, expected = layer(x), F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    if trained:
        results = (with_gradients(output, [x, *layer.parameters()]) for output in (y, expected))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_fast_forms_need_a_device_a_type_eager_code_and_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2, 3)
    assert usable(x, None)
    assert usable(x, operators=(fast_cpu.FLASH,), onednn=True)
    assert not usable(x, operators=("aten.no_such_operator",))
    assert not usable(x.to("meta"))
    assert not usable(x, torch.zeros(0, 3))
    assert usable(x.double())
    assert not usable(x.double(), onednn=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert not usable(x)
        assert usable(x, autocast=True)

    def add_if_usable(x: Tensor) -> Tensor:
        return x + 1 if usable(x) else x

    assert torch.equal(torch.compile(add_if_usable, backend="eager")(x), x)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert usable(x)
    assert not usable(x, onednn=True)
    monkeypatch.setattr(fast_cpu, "PLAIN", True)
    assert not usable(x, autocast=True)


def test_environment_variable_disables_fast_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not import_again("attnkit.ops.fast_cpu").PLAIN
    monkeypatch.setenv("ATTNKIT_PLAIN_KERNELS", "1")
    assert import_again("attnkit.ops.fast_cpu").PLAIN
