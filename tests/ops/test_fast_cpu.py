"""The gate of the fast forms: what it asks, and torch versions that lack a private operator."""

import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
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
    """torch.ops of a version that has no operator of one name."""

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
    """The name of an operator that this torch lacks, until the test is over."""
    monkeypatch.setattr(torch, "ops", Without(torch.ops, request.param))
    operator.cache_clear()
    yield request.param
    monkeypatch.undo()
    operator.cache_clear()


def imported_afresh(module: str) -> ModuleType:
    """A second copy of a module, as an import would run it now."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    return fresh


def test_this_version_of_torch_has_all_operators() -> None:
    constants = ("FLASH", "FLASH_BACKWARD", "PRODUCT", "WEIGHT_GRADIENTS")
    named = {getattr(fast_cpu, name) for name in constants}
    assert all(operator(name) is not None for name in named)
    assert {".".join(name.split(".")[:2]) for name in named} == set(OPERATORS)


def test_modules_are_imported_without_an_operator(missing: str) -> None:
    assert operator(missing) is None
    for name in ("fast_cpu", "onednn", "block_sparse"):
        imported_afresh(f"attnkit.ops.{name}")
    imported_afresh("attnkit.mechanisms.sink")


@pytest.mark.parametrize("trained", [False, True])
def test_linear_layers_are_right_without_an_operator(
    trained: bool, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "MIN_WORK", 1)
    monkeypatch.setattr(onednn, "WIDER", True)
    monkeypatch.setattr(onednn, "MIN_TRAINING_WORK", 1)
    layer, x = onednn.Linear(48, 33), torch.randn(5, 7, 48).requires_grad_(trained)
    with torch.set_grad_enabled(trained):
        y, plain = layer(x), F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(y, plain, rtol=1e-4, atol=1e-5)
    if trained:
        wanted = [x, *layer.parameters()]
        pairs = [torch.autograd.grad(part.square().sum(), wanted) for part in (y, plain)]
        torch.testing.assert_close(*pairs, rtol=1e-4, atol=1e-4)


def test_the_gate_asks_for_device_type_eager_code_and_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
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

    def asked(x: Tensor) -> Tensor:
        return x + 1 if usable(x) else x

    assert torch.equal(torch.compile(asked, backend="eager")(x), x)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert usable(x)
    assert not usable(x, onednn=True)
    monkeypatch.setattr(fast_cpu, "PLAIN", True)
    assert not usable(x, autocast=True)


def test_the_environment_can_switch_fast_forms_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not imported_afresh("attnkit.ops.fast_cpu").PLAIN
    monkeypatch.setenv("ATTNKIT_PLAIN_KERNELS", "1")
    assert imported_afresh("attnkit.ops.fast_cpu").PLAIN
