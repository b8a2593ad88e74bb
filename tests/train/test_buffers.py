"""Tests of buffers (random directions, counts) in 16-bit training and in averages."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnkit.attention import Mask
from attnkit.data.batch import Batch
from attnkit.layers import MultiHead
from attnkit.recipe.schema import TrainConfig
from attnkit.train.loss import LossOptions
from attnkit.train.optimizer import Averaging
from attnkit.train.precision import GradientWorker


class SmallModel(nn.Module):
    """A mechanism that counts its calls, with the least around it that a worker needs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = MultiHead.build("performer", 8, 2, 10, redraw_every=2)
        self.output = nn.Linear(8, 5, bias=False)

    def hidden(self, source: Tensor | None, inputs: Tensor) -> Tensor:
        x = nn.functional.one_hot(inputs, 8).to(self.output.weight.dtype)
        return self.layer(x, Mask.packed(x.shape[1], x.device, causal=True)).y


def test_16_bit_training_updates_the_buffers_of_the_float32_model() -> None:
    model = SmallModel()
    mechanism = model.layer.mechanism
    before = mechanism.projection.clone()
    worker = GradientWorker(model, "bf16")
    ids = torch.tensor([[1, 2, 3]])
    batch = Batch(None, ids, ids, np.zeros(1, dtype=np.int64), 3)
    for _ in range(2):
        worker.backward(worker.losses(batch, LossOptions()).total, 3)
    assert int(mechanism.calls) == 2
    assert mechanism.projection.dtype == torch.float32
    assert not torch.equal(mechanism.projection, before)


@pytest.mark.parametrize("settings", [{"ema": 0.9}, {"average": 3}])
def test_averages_hold_the_newest_buffers_not_their_mean(settings: dict[str, Any]) -> None:
    model = SmallModel()
    averaging = Averaging(TrainConfig(**settings), model)
    x = torch.randn(1, 4, 8)
    for step in range(1, 6):
        model.layer(x, Mask.packed(4, x.device, causal=True))
        with torch.no_grad():
            model.output.weight += 1
        averaging.update(step)
        averaging.remember(step)
    average, newest = averaging.candidate(), model.state_dict()
    assert torch.equal(average["layer.mechanism.projection"], newest["layer.mechanism.projection"])
    assert int(average["layer.mechanism.calls"]) == 5
    assert not torch.equal(average["output.weight"], newest["output.weight"])
