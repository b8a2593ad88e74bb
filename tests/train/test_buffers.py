"""State that is not trained (random directions, counts) in 16-bit training and in averages."""

import numpy as np
import torch
from torch import Tensor, nn

from attnkit.attention import Mask
from attnkit.data.batch import Batch
from attnkit.layers import MultiHead
from attnkit.recipe.schema import TrainConfig
from attnkit.train.loss import LossOptions
from attnkit.train.optimiser import Averaging
from attnkit.train.precision import GradientWorker


class Small(nn.Module):
    """As much of a model as a worker needs, around a mechanism that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = MultiHead.build("performer", 8, 2, 10, redraw_every=2)
        self.output = nn.Linear(8, 5, bias=False)

    def hidden(self, source: Tensor | None, inputs: Tensor) -> Tensor:
        x = nn.functional.one_hot(inputs, 8).to(self.output.weight.dtype)
        return self.layer(x, Mask.packed(x.shape[1], x.device, causal=True)).y


def test_what_a_16_bit_copy_counts_and_draws_is_the_masters() -> None:
    model = Small()
    before = model.layer.mechanism.projection.clone()
    worker = GradientWorker(model, "bf16")
    ids = torch.tensor([[1, 2, 3]])
    batch = Batch(None, ids, ids, np.zeros(1, dtype=np.int64), 3)
    for _ in range(2):
        worker.backward(worker.losses(batch, LossOptions()).total, 3)
    assert int(model.layer.mechanism.calls) == 2
    assert model.layer.mechanism.projection.dtype == torch.float32
    assert not torch.equal(model.layer.mechanism.projection, before)


def test_averages_take_the_newest_directions_and_counts_not_their_means() -> None:
    for settings in ({"ema": 0.9}, {"average": 3}):
        model = Small()
        averaging = Averaging(TrainConfig(**settings), model)
        x = torch.randn(1, 4, 8)
        for step in range(1, 6):
            model.layer(x, Mask.packed(4, x.device, causal=True))
            with torch.no_grad():
                model.output.weight += 1
            averaging.update(step)
            averaging.remember(step)
        found = averaging.candidate()
        live = model.state_dict()
        assert torch.equal(found["layer.mechanism.projection"], live["layer.mechanism.projection"])
        assert int(found["layer.mechanism.calls"]) == 5
        assert not torch.equal(found["output.weight"], live["output.weight"])
