"""Operations are counted, and time goes to the part that took it."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from attnkit.bench.matrix_products import peak
from attnkit.bench.step_parts import split
from attnkit.kernels import fast_cpu
from attnkit.kernels.onednn import Linear
from attnkit.kernels.operation_count import count_operations
from attnkit.layers import FeedForward
from attnkit.models.fast_decoder import FastBlock


class Slow(FeedForward):
    """Sleeps in both passes."""

    def forward(self, x: Any) -> Any:
        time.sleep(0.05)
        y = super().forward(x)
        y.register_hook(lambda gradient: time.sleep(0.05))
        return y


def test_a_slow_layer_is_the_longest_part() -> None:
    model = nn.Sequential(nn.LayerNorm(8), Slow(8, 8, "relu", 0.0))
    x = torch.randn(4, 8)
    parts = split(model, lambda: model(x).sum().backward(), 2, "cpu")
    assert parts[0].name == "feed-forward"
    assert parts[0].forward > 0.04
    assert sum(part.total for part in parts) > 0.09
    norm = next(part for part in parts if part.name == "normalisation")
    assert 0 < norm.backward < 0.04


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_dropout_inside_the_feed_forward_part_is_a_part(activation: str) -> None:
    model = nn.Sequential(FeedForward(8, 16, activation, 0.5))
    parts = split(model, lambda: model(torch.randn(4, 8)).sum().backward(), 1, "cpu")
    assert {"feed-forward", "dropout"} <= {part.name for part in parts}


def test_the_layers_are_left_as_they_were() -> None:
    model, method = nn.Sequential(nn.LayerNorm(8)), FastBlock.feed_forward
    split(model, lambda: model(torch.randn(2, 8)), 1, "cpu")
    assert not model[0]._forward_pre_hooks
    assert not model[0]._forward_hooks
    assert FastBlock.feed_forward is method


@pytest.mark.parametrize("rows", [2, 4096])
def test_operations_are_those_of_the_three_products(rows: int) -> None:
    layer, x = Linear(64, 96), torch.randn(rows, 64, requires_grad=True)
    counted = count_operations(lambda: layer(x).sum().backward())
    assert counted == 3 * 2 * rows * 64 * 96  # forward, and the gradients of x and of the weight
    assert not fast_cpu.PLAIN


def test_the_peak_is_that_of_the_fastest_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.bench.matrix_products.SIDES", (64, 128))
    ticks = iter([0.0, 1.0] * 4 + [0.0, 2.0] * 4)
    monkeypatch.setattr("attnkit.bench.matrix_products.clock", lambda device: next(ticks))
    assert peak("fp32", "cpu") == max(2 * 64**3 / 1.0, 2 * 128**3 / 2.0)


def test_seconds_are_of_the_device_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    event = SimpleNamespace(
        name="attnkit: loss", sequence_nr=-1, cpu_parent=None,
        time_range=SimpleNamespace(start=0), self_cpu_time_total=5e6, self_device_time_total=2e6,
    )  # fmt: skip

    class Profile:
        def __init__(self, activities: Any) -> None:
            self.activities = activities

        def __enter__(self) -> "Profile":
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def events(self) -> list[Any]:
            return [event]

    monkeypatch.setattr("attnkit.bench.step_parts.profile", Profile)
    for device, seconds in (("cpu", 5.0), ("cuda:0", 2.0)):
        (part,) = split(nn.Identity(), lambda: None, 1, device)
        assert part == ("loss", seconds, 0.0)
