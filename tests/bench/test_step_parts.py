"""Operations are counted, and time goes to the part that took it."""

import time
from typing import Any

import pytest
import torch
from torch import nn

from attnkit.bench.step_parts import split
from attnkit.layers import FeedForward
from attnkit.models.fast_decoder import FastBlock
from attnkit.ops import fast_cpu
from attnkit.ops.onednn import Linear
from attnkit.ops.operation_count import count_operations


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


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_dropout_inside_the_feed_forward_part_is_a_part(activation: str) -> None:
    model = nn.Sequential(FeedForward(8, 16, activation, 0.5))
    parts = split(model, lambda: model(torch.randn(4, 8)).sum().backward(), 1, "cpu")
    assert {"feed-forward", "dropout"} <= {part.name for part in parts}


def test_the_layers_are_left_as_they_were() -> None:
    model, method = nn.Sequential(nn.LayerNorm(8)), FastBlock.feed_forward
    split(model, lambda: model(torch.randn(2, 8)), 1, "cpu")
    assert "forward" not in vars(model[0])
    assert FastBlock.feed_forward is method


@pytest.mark.parametrize("rows", [2, 4096])
def test_operations_are_those_of_the_three_products(rows: int) -> None:
    layer, x = Linear(64, 96), torch.randn(rows, 64, requires_grad=True)
    counted = count_operations(lambda: layer(x).sum().backward())
    assert counted == 3 * 2 * rows * 64 * 96  # forward, and the gradients of x and of the weight
    assert not fast_cpu.PLAIN
