"""The cost of a recipe is counted, not guessed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from attnkit import models
from attnkit.data.batch import collate
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
    return made(folder)


@pytest.fixture(scope="module")
def prepared(recipe: Recipe, folder: Path) -> PreparedData:
    return prepare(recipe, cache=folder / "cache")


def made(folder: Path, *overrides: str) -> Recipe:
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
def test_parameters_are_those_of_the_model_that_is_built(folder: Path, overrides: tuple[str, ...]) -> None:
    recipe = made(folder, *overrides)
    counted = cost.parameters(recipe, (300, 300))
    model = models.build(recipe.model, (300, 300), recipe.data.max_length)
    assert counted.total == sum(p.numel() for p in model.parameters())


def test_parameters_by_hand(folder: Path) -> None:
    counted = cost.parameters(made(folder), (300, 300))
    assert counted.embeddings == 300 * 32
    assert counted.attention == 6 * 4 * (32 * 32 + 32)  # 2 encoder, 2 decoder, 2 cross
    norms = 2 * 32 * (2 * 2 + 2 * 3 + 2)
    feed_forward = 4 * (32 * 64 + 64 + 64 * 32 + 32)
    assert counted.total == counted.embeddings + counted.attention + feed_forward + norms


def kept_by_a_real_run(recipe: Recipe, shape: cost.BatchShape) -> int:
    """Bytes that autograd holds when a model with real weights runs forward."""
    torch.manual_seed(0)
    model = models.build(recipe.model, (300, 300), recipe.data.max_length).train()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    source = torch.full((shape.rows, shape.source), 5)
    ids = torch.full((shape.rows, shape.target), 5)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model.hidden(source, ids).flatten(0, 1)
        losses = token_losses(hidden, model.output.weight, ids.flatten(), LossOptions(0.1))
    assert losses.total.requires_grad
    return sum(t.untyped_storage().nbytes() for ptr, t in held.items() if ptr not in own)


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
def test_memory_of_activations_is_what_a_real_run_holds(folder: Path, overrides: tuple[str, ...]) -> None:
    recipe = made(folder, *overrides)
    shape = cost.BatchShape(6, 20, 23)
    weights = 5 * 4 * cost.parameters(recipe, (300, 300)).total
    counted = cost.memory(recipe, (300, 300), shape) - weights
    assert counted == pytest.approx(kept_by_a_real_run(recipe, shape), rel=0.05)


def test_memory_of_weights_counts_every_copy(folder: Path) -> None:
    shape = cost.BatchShape(2, 5, 5)
    weights = 4 * cost.parameters(made(folder), (300, 300)).total
    plain = cost.memory(made(folder), (300, 300), shape)
    averaged = cost.memory(made(folder, "train.average=4"), (300, 300), shape)
    assert averaged == plain + 4 * weights
    # activations of half the size, and 16-bit copies of weights and gradients
    low = cost.memory(made(folder, "train.precision=bf16"), (300, 300), shape)
    assert low - 6 * weights < 0.7 * (plain - 5 * weights)


def test_padding_is_that_of_the_tensors_of_the_first_epoch(recipe: Recipe, prepared: PreparedData) -> None:
    found = cost.padding(recipe, prepared)
    planned = cost.batches(recipe, prepared)
    made = [collate(prepared.train, rows) for rows in planned]
    for share, side in ((found.source, "source"), (found.target, "output")):
        tensors = [getattr(batch, side) for batch in made]
        pads = sum(int((tensor == 0).sum()) for tensor in tensors)
        assert share == pytest.approx(pads / sum(tensor.numel() for tensor in tensors))
    assert found.updates == len(made) / 2
    assert found.epochs == pytest.approx(50 / (len(made) / 2))


def test_memory_is_that_of_the_batch_with_most_tokens_or_widest_squares(
    recipe: Recipe, prepared: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []
    for rows in cost.batches(recipe, prepared):
        batch = collate(prepared.train, rows)
        assert batch.source is not None
        shapes.append((len(rows), batch.source.shape[1], batch.input.shape[1]))
    for size in (lambda r, s, t: r * (s + t), lambda r, s, t: r * max(s, t) ** 2):
        monkeypatch.setattr(cost, "memory", lambda _, __, shape, size=size: size(*shape))
        assert cost.largest_memory(recipe, prepared) == max(size(*shape) for shape in shapes)


def test_without_data_rows_fill_the_budget(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "memory", lambda _, __, shape: shape)
    found = cost.cost_of(recipe)
    assert found.memory == cost.BatchShape(16, 32, 32)
    assert (found.padding, found.pace) == (None, None)


def test_time_is_that_of_two_batches_scaled_to_the_average_update(
    recipe: Recipe, prepared: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "_timed", lambda *_: {"fp32": [6.0], "bf16": [4.0]})
    found = cost.pace(recipe, prepared)
    batches = [collate(prepared.train, rows) for rows in cost.batches(recipe, prepared)]
    padded = sorted(b.source.numel() + b.input.numel() for b in batches if b.source is not None)
    two = padded[len(padded) // 3] + padded[2 * len(padded) // 3]
    assert found.precision == "bf16"
    assert cost.pace(recipe, prepared, auto="fp32").seconds == pytest.approx(1.5 * found.seconds)
    assert found.seconds == pytest.approx(4.0 / two * np.mean(padded) * 2)
    assert found.training == pytest.approx(50 * found.seconds)
    tokens = np.mean([batch.tokens for batch in batches]) * 2
    assert found.tokens_per_second == pytest.approx(tokens / found.seconds)


@pytest.mark.slow
def test_measuring_leaves_the_random_state_alone(recipe: Recipe, prepared: PreparedData) -> None:
    before = torch.get_rng_state()
    found = cost.cost_of(recipe, prepared)
    assert found.pace is not None
    assert found.pace.seconds > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_precision_is_chosen_by_paired_timings_and_kept(
    recipe: Recipe, prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two busy rounds of five hit the faster precision ten times as hard, and decide nothing."""
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path))
    measured = []

    def timed(*_: object) -> dict[str, list[float]]:
        measured.append(1)
        return {"fp32": [2.0, 2.0, 2.0, 2.0, 2.0], "bf16": [1.0, 20.0, 1.0, 20.0, 1.0]}

    monkeypatch.setattr(cost, "_timed", timed)
    chosen, why = cost.choose_precision(recipe, prepared, "cpu")
    assert (chosen, why) == ("bf16", "bf16 takes 0.50 times as long as fp32 on this machine")
    assert cost.choose_precision(recipe, prepared, "cpu")[0] == "bf16"
    assert len(measured) == 1
    wider = recipe.model_copy(update={"model": recipe.model.model_copy(update={"width": 64})})
    cost.choose_precision(wider, prepared, "cpu")
    assert len(measured) == 2
    kept = next((tmp_path / "precision").iterdir()).read_text()
    damaged = ("fp64", '"bf16"', kept.replace("bf16", "fp32"), kept.replace("sha", "tha"), "")
    for count, text in enumerate(damaged, 3):
        for file in (tmp_path / "precision").iterdir():
            file.write_text(text)
        assert cost.choose_precision(recipe, prepared, "cpu")[0] == "bf16"
        assert len(measured) == count
