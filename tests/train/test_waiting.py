"""Tests, on tensors without values, that an update stays on one device and does not wait for the GPU."""

from typing import Any

import pytest
import torch
from helpers.model_types import MODEL_TYPES
from helpers.watched_device import DEVICE, Lists, Watch

from attnkit.data.batch import Batch
from attnkit.models import build
from attnkit.recipe.schema import ModelConfig
from attnkit.train.loss import LossOptions
from attnkit.train.precision import GradientWorker

MODELS: dict[str, dict[str, Any]] = {
    **MODEL_TYPES,
    "decoder": {"shape": "decoder"},
    "encoder": {"shape": "encoder"},
    "decoder-learned": {"shape": "decoder", "positions": "learned"},
    "rope": {"positions": "rope", "norm": "post", "activation": "swiglu"},
    "untied": {"tie": "none", "dropout": 0.3, "activation_dropout": 0.2},
}


def padded_batch(*, source: bool = True, labels: int | None = None) -> Batch:
    """Return rows of 5 and 9 tokens."""
    ids = torch.randint(4, 20, (2, 9))
    ids[0, 5:] = 0
    if labels is not None:
        column = torch.randint(0, labels, (2, 1)) + 4
        return Batch(ids, column, column, torch.arange(2).numpy(), 2)
    return Batch(ids if source else None, ids, ids, torch.arange(2).numpy(), 14)


@pytest.mark.sampled(13)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_update_reads_no_values(name: str, precision: str) -> None:
    config = ModelConfig.model_validate({"width": 16, "ff": 24, "heads": 2} | MODELS[name])
    model = build(config, (23, 23), 40).to(DEVICE)
    worker = GradientWorker(model, precision)
    batch = padded_batch(source=config.shape != "decoder", labels=5 if config.shape == "encoder" else None)
    for options in (LossOptions(), LossOptions(0.1, 0.5, 0.2)):
        tensors = batch.to(DEVICE)
        with Watch(), Lists():
            losses = worker._losses(tensors, options)
            worker.backward(losses.total, batch.tokens)
            norm = torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)
        assert norm.device == DEVICE
        assert all(p.grad is not None and p.grad.device == DEVICE for p in model.parameters())


def test_selecting_by_a_mask_would_read_values() -> None:
    ids = padded_batch(source=False).input.to(DEVICE)
    with Watch(), pytest.raises(AssertionError, match="depends on values"):
        ids[ids != 0]


@pytest.mark.parametrize("rows", [[0, 1], [1], []])
@pytest.mark.parametrize("only_padding", [False, True])
def test_targets_and_their_states_exclude_padding(rows: list[int], only_padding: bool) -> None:
    batch = padded_batch()
    output = torch.zeros_like(batch.output) if only_padding else batch.output
    batch = batch._replace(output=output[rows], input=batch.input[rows])
    tensors = batch.to(torch.device("cpu"))
    hidden = torch.randn(len(rows), 9, 4)
    torch.testing.assert_close(tensors.predicting(hidden), hidden[batch.output != 0])
    torch.testing.assert_close(tensors.targets, batch.output[batch.output != 0])
    assert (tensors.places is None) == bool((batch.output != 0).all())


def test_batches_for_a_gpu_are_copied_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[tuple[object, bool]] = []

    def to(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        copies.append((device, non_blocking and hasattr(tensor, "pinned")))
        return tensor

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.pinned = True  # type: ignore[attr-defined]
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    gpu = torch.device("cuda")
    padded_batch().to(gpu)
    assert copies == [(gpu, True)] * 4
