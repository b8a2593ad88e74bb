"""Tests of the cost of a recipe: parameters, memory, padding, time, and the choice of the precision."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from attnkit import models
from attnkit.data.batch import Batch, collate
from attnkit.data.preparation import PreparedData, prepare
from attnkit.experiment import cost
from attnkit.recipe import Recipe, load
from attnkit.train.loss import LossOptions, token_losses

SMALL = (
    "task: translation\ndata: {corpus: toy-translation, size: 300, max_length: 64}\n"
    "tokenizer: {size: 300}\nmodel: {width: 32, ff: 64, layers: 2, heads: 2}\n"
    "train: {batch_tokens: 512, steps: 50, accumulate: 2, seeds: [3, 4]}\n"
)
RECURRENT = ("model.type=recurrent", "model.ff=1024", "model.attention.cross=additive")
PLACES = "{encoder: synthesizer-random, decoder: linear, cross: scaled-dot}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explain")


@pytest.fixture(scope="module")
def recipe(folder: Path) -> Recipe:
    return small(folder)


@pytest.fixture(scope="module")
def prepared(recipe: Recipe, folder: Path) -> PreparedData:
    return prepare(recipe, cache=folder / "cache")


def small(folder: Path, *overrides: str) -> Recipe:
    path = folder / "r.yaml"
    path.write_text(SMALL)
    return load(path, overrides).variants["base"]


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        (f"model.attention={PLACES}",),
        ("model.tie=none",),
        RECURRENT,
        ("model.type=convolutional", "model.ff=1024"),
    ],
)
def test_parameters_equal_those_of_the_model(folder: Path, overrides: tuple[str, ...]) -> None:
    recipe = small(folder, *overrides)
    model = models.build(recipe.model, (300, 300), recipe.data.max_length)
    assert cost.parameters(recipe, (300, 300)).total == sum(p.numel() for p in model.parameters())


def test_parameters_equal_a_calculation_by_hand(recipe: Recipe) -> None:
    counted = cost.parameters(recipe, (300, 300))
    assert counted.embeddings == 300 * 32
    assert counted.attention == 6 * 4 * (32 * 32 + 32)  # 2 encoder, 2 decoder, 2 cross
    norms = 2 * 32 * (2 * 2 + 2 * 3 + 2)
    feed_forward = 4 * (32 * 64 + 64 + 64 * 32 + 32)
    assert counted.total == counted.embeddings + counted.attention + feed_forward + norms


def saved_bytes(recipe: Recipe, shape: cost.BatchShape) -> int:
    """Return the number of bytes that autograd saves in the forward pass of a model."""
    torch.manual_seed(0)
    model = models.build(recipe.model, (300, 300), recipe.data.max_length).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    source = torch.full((shape.rows, shape.source), 5)
    ids = torch.full((shape.rows, shape.target), 5)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model.hidden(source, ids).flatten(0, 1)
        losses = token_losses(hidden, model.output.weight, ids.flatten(), LossOptions(0.1))
    assert losses.total.requires_grad
    return sum(t.untyped_storage().nbytes() for pointer, t in saved.items() if pointer not in weights)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        (f"model.attention={PLACES}",),
        ("model.attention={encoder: nystrom, decoder: gated-delta, cross: performer}",),
        ("model.attention={encoder: local, decoder: block-topk}",),
        ("model.positions=rope", "model.activation=swiglu"),
        *((*RECURRENT, f"model.cell={cell}") for cell in ("lstm", "gru", "sru")),
        ("model.type=convolutional", "model.ff=1024"),
    ],
)
def test_memory_of_activations_equals_that_of_autograd(folder: Path, overrides: tuple[str, ...]) -> None:
    recipe = small(folder, *overrides)
    shape = cost.BatchShape(6, 20, 23)
    weights = 5 * 4 * cost.parameters(recipe, (300, 300)).total
    activations = cost.memory(recipe, (300, 300), shape) - weights
    assert activations == pytest.approx(saved_bytes(recipe, shape), rel=0.05)


def test_memory_of_weights_includes_every_copy(folder: Path) -> None:
    def memory(*overrides: str) -> int:
        return cost.memory(small(folder, *overrides), (300, 300), cost.BatchShape(2, 5, 5))

    weights, plain = 4 * cost.parameters(small(folder), (300, 300)).total, memory()
    assert memory("train.average=4") == plain + 4 * weights
    # activations of half the size, and 16-bit copies of weights and gradients
    assert memory("train.precision=bf16") - 6 * weights < 0.7 * (plain - 5 * weights)


@pytest.fixture(scope="module")
def batches(recipe: Recipe, prepared: PreparedData) -> list[Batch]:
    """Return the batches of the first epoch."""
    return [collate(prepared.train, rows) for rows in cost.batches(recipe, prepared)]


def test_padding_equals_that_of_the_first_epoch(recipe: Recipe, prepared: PreparedData, batches: list[Batch]) -> None:
    found = cost.padding(recipe, prepared)
    for share, side in ((found.source, "source"), (found.target, "output")):
        ids = torch.cat([getattr(batch, side).flatten() for batch in batches])
        assert share == pytest.approx((ids == 0).double().mean().item())
    assert found.updates == len(batches) / 2
    assert found.epochs == pytest.approx(50 / (len(batches) / 2))


def test_memory_is_that_of_the_largest_batch(
    recipe: Recipe, prepared: PreparedData, batches: list[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest batch has the most tokens or the largest attention maps."""
    shapes = [(*batch.source.shape, batch.input.shape[1]) for batch in batches]
    for size in (lambda r, s, t: r * (s + t), lambda r, s, t: r * max(s, t) ** 2):
        monkeypatch.setattr(cost, "memory", lambda _, __, shape, size=size: size(*shape))
        assert cost.largest_memory(recipe, prepared) == max(size(*shape) for shape in shapes)


def test_cost_without_data_assumes_full_batches(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "memory", lambda _, __, shape: shape)
    found = cost.cost_of(recipe)
    assert found.memory == cost.BatchShape(16, 32, 32)
    assert (found.padding, found.pace) == (None, None)


def test_time_of_two_batches_is_scaled_to_the_average_update(
    recipe: Recipe, prepared: PreparedData, batches: list[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "_timed", lambda *_: {"fp32": [6.0], "bf16": [4.0]})
    found = cost.pace(recipe, prepared)
    padded = sorted(batch.source.numel() + batch.input.numel() for batch in batches)
    two = padded[len(padded) // 3] + padded[2 * len(padded) // 3]
    assert found.precision == "bf16"
    assert cost.pace(recipe, prepared, auto="fp32").seconds == pytest.approx(1.5 * found.seconds)
    assert found.seconds == pytest.approx(4.0 / two * np.mean(padded) * 2)
    assert found.training == pytest.approx(50 * found.seconds)
    tokens = np.mean([batch.tokens for batch in batches]) * 2
    assert found.tokens_per_second == pytest.approx(tokens / found.seconds)


@pytest.mark.slow
def test_measuring_does_not_change_the_random_state(recipe: Recipe, prepared: PreparedData) -> None:
    before = torch.get_rng_state()
    assert cost.cost_of(recipe, prepared).pace.seconds > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_precision_is_chosen_by_paired_timings_and_stored(
    recipe: Recipe, prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slow rounds of the faster precision, of five, do not change the choice."""
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path))
    timed = Mock(return_value={"fp32": [2.0] * 5, "bf16": [1.0, 20.0, 1.0, 20.0, 1.0]})
    monkeypatch.setattr(cost, "_timed", timed)
    expected = ("bf16", "bf16 takes 0.50 times as long as fp32 on this machine")
    assert cost.choose_precision(recipe, prepared, "cpu") == expected
    assert cost.choose_precision(recipe, prepared, "cpu")[0] == "bf16"
    assert timed.call_count == 1
    wider = recipe.model_copy(update={"model": recipe.model.model_copy(update={"width": 64})})
    cost.choose_precision(wider, prepared, "cpu")
    assert timed.call_count == 2
    stored = next((tmp_path / "precision").iterdir()).read_text()
    damaged = ("fp64", '"bf16"', stored.replace("bf16", "fp32"), stored.replace("sha", "tha"), "")
    for count, text in enumerate(damaged, 3):
        for file in (tmp_path / "precision").iterdir():
            file.write_text(text)
        assert cost.choose_precision(recipe, prepared, "cpu")[0] == "bf16"
        assert timed.call_count == count
