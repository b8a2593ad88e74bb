"""Tests of learning-rate schedules against values computed by hand, and of weight decay."""

import math

import pytest
from torch import nn

from attnkit.recipe.schema import TrainConfig
from attnkit.train.optimizer import learning_rate, optimizer


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        ("inverse-sqrt", 50, 0.5),
        ("inverse-sqrt", 100, 1.0),
        ("inverse-sqrt", 400, 0.5),
        ("noam", 100, 512**-0.5 * 0.1),
        ("noam", 25, 512**-0.5 * 0.025),
        ("noam", 400, 512**-0.5 * 0.05),
        ("linear", 100, 1.0),
        ("linear", 550, 0.1 + 0.9 * 0.5),
        ("linear", 1000, 0.1),
        ("cosine", 550, 0.1 + 0.9 * 0.5),
        ("cosine", 325, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2),
        ("cosine", 1000, 0.1),
        ("constant", 1, 0.01),
        ("constant", 900, 1.0),
    ],
)
def test_learning_rate_equals_hand_computed_values(schedule: str, step: int, expected: float) -> None:
    train = TrainConfig(lr=1.0, schedule=schedule, warmup=100, steps=1000, min_lr=0.1)
    assert learning_rate(step, train, width=512) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "noam", "linear", "cosine", "constant"])
def test_without_warmup_the_first_rate_is_the_highest(schedule: str) -> None:
    """Without a warmup, no schedule divides by its length."""
    train = TrainConfig(lr=1.0, schedule=schedule, warmup=0, steps=10)
    rates = [learning_rate(step, train, width=1) for step in range(1, 11)]
    assert max(rates) <= 1.0
    assert rates[0] == pytest.approx(1.0, abs=0.11)


def test_weight_decay_applies_only_to_matrices() -> None:
    layer = nn.Linear(2, 2)
    groups = optimizer(layer.named_parameters(), TrainConfig(weight_decay=0.1)).param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert decays == {id(layer.weight): 0.1, id(layer.bias): 0.0}
    assert all(group["fused"] for group in groups)
