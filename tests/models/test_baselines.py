"""Tests of every type of model: caches, padding, beams, causality, gradients, maps."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers.map_recording import record_maps, stack_weights
from helpers.model_types import BASELINES, MODEL_TYPES
from helpers.tiny_models import tiny_model
from torch import Tensor

from attnkit import mechanisms
from attnkit.analysis.recorder import attention_layers
from attnkit.data.batch import Batch
from attnkit.models import Decode, Model
from attnkit.recipe.schema import AttentionConfig, Roles, SearchConfig
from attnkit.search.decoding import search
from attnkit.train.loss import LossOptions
from attnkit.train.precision import GradientWorker

SIZE = 23


def build(options: dict[str, Any]) -> Model:
    model = tiny_model(SIZE, dropout=0.2, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # weights that start at zero get an effect
            parameter += 0.1 * torch.randn_like(parameter)
    return model  # type: ignore[no-any-return]


def random_ids(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(4, SIZE, (rows, length), generator=torch.Generator().manual_seed(seed))


def padded() -> Tensor:
    source = random_ids(3, 9)
    source[1, 5:] = 0
    source[2, 1:] = 0
    return source


@pytest.fixture(params=MODEL_TYPES)
def model(request: pytest.FixtureRequest) -> Model:
    return build(MODEL_TYPES[request.param])


ROLES = ("encoder", "decoder", "cross")
TRANSFORMERS: list[dict[str, Any]] = [
    {"attention": {role: {"name": "dot"} for role in ROLES}},
    {"attention": {role: {"name": "linear"} for role in ROLES}},
    {"attention": {role: {"name": "synthesizer-random"} for role in ROLES[:2]}},
    {"positions": "learned"},
    {"positions": "rope"},
    {"positions": "none"},
    {"norm": "post", "activation": "gelu", "tie": "decoder"},
    {"activation": "swiglu", "tie": "none", "bias": False},
    {"activation": "geglu"},
    {"init_std": 0.02, "positions": "learned"},
]
MODELS = MODEL_TYPES | {
    str(options | shape): options | shape for shape in ({}, {"shape": "decoder"}) for options in TRANSFORMERS
}


@torch.no_grad()
def assert_steps_equal_one_pass(model: Model) -> None:
    source, target = padded(), random_ids(3, 12, 1)
    state, logits = model.start(source), []
    for start, end in ((0, 1), (1, 5), (5, 6), (6, 12)):
        part, state = model.step(target[:, start:end], state)
        logits.append(part)
    torch.testing.assert_close(torch.cat(logits, 1), model(source, target))


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_cached_steps_equal_one_pass(options: dict[str, Any]) -> None:
    assert_steps_equal_one_pass(build(options))


CROSS = [word for word in mechanisms.names() if mechanisms.facts(word).cross and not mechanisms.facts(word).composite]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ["lstm-additive", "convs2s"])
@pytest.mark.parametrize("word", CROSS)
def test_cached_steps_with_every_cross_attention_equal_one_pass(kind: str, word: str) -> None:
    attention = Roles(cross=AttentionConfig(name=word))
    assert_steps_equal_one_pass(build(BASELINES[kind] | {"attention": attention, "heads": 2}))


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_sentence_alone_equals_itself_in_a_padded_batch(options: dict[str, Any]) -> None:
    model, source, target = build(options), padded(), random_ids(3, 6, 1)
    batch = model(source, target)
    for row, length in enumerate((9, 5, 1)):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        torch.testing.assert_close(alone, batch[row : row + 1])


@torch.no_grad()
def test_beams_are_reordered_and_sentences_removed(model: Model) -> None:
    source, target, ids = padded(), random_ids(3, 1, 1), random_ids(6, 4, 2)
    _, state = model.step(target, model.start(source))
    state = state.select(torch.arange(3).repeat_interleave(2), None)
    _, state = model.step(ids[:, :2], state)
    # the beams of sentence 1 are removed; those of 0 swap, one of those of 2 is repeated
    order = torch.tensor([1, 0, 5, 5])
    state = state.select(order, torch.tensor([0, 2]))
    assert isinstance(state, Decode)
    last, _ = model.step(ids[:4, 2:], state, last=True)
    rows = torch.cat((target.repeat_interleave(2, 0), ids[:, :2]), 1)[order]
    whole = model(source[[0, 0, 2, 2]], torch.cat((rows, ids[:4, 2:]), 1))
    torch.testing.assert_close(last, whole[:, -1:])


def test_beam_of_one_equals_greedy_search(model: Model) -> None:
    greedy, beam = (
        [
            (best.ids, best.complete)
            for (best,) in search(model, padded(), SearchConfig(method=method, beam=1, max_length=9), lines=range(3))
        ]
        for method in ("greedy", "beam")
    )
    assert greedy == beam
    assert any(ids for ids, _ in greedy)


def test_later_target_tokens_change_no_earlier_output(model: Model) -> None:
    source, target = padded(), random_ids(3, 8, 1)
    changed = torch.cat((target[:, :5], random_ids(3, 3, 7)), 1)
    before, after = model(source, target), model(source, changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=1e-12)
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_every_source_token_changes_the_first_output(model: Model) -> None:
    source, target = padded(), random_ids(3, 2, 1)
    before = model(source, target)[:, 0]
    for position in range(9):
        changed = source.clone()
        changed[0, position] = (source[0, position] - 3) % (SIZE - 4) + 4
        after = model(changed, target)[:, 0]
        assert not torch.allclose(after[0], before[0])
        torch.testing.assert_close(after[1:], before[1:])


def batch_of(rows: slice) -> Batch:
    source, target = padded()[rows], random_ids(3, 7, 1)
    target[0, 5:] = 0
    target = target[rows]
    tokens = int((target[:, 1:] != 0).sum())
    return Batch(source, target[:, :-1], target[:, 1:], np.arange(len(source)), tokens)


def gradients(model: Model, *rows: slice) -> list[Tensor]:
    """Return the gradients accumulated over batches of these rows, without dropout."""
    worker = GradientWorker(model, "fp32")
    worker.model.eval()
    model.zero_grad(set_to_none=True)
    for batch in map(batch_of, rows):
        worker.backward(worker.losses(batch, LossOptions(0.1)).total, 16)
    return [p.grad.clone() for p in model.parameters()]


def test_every_parameter_gets_a_gradient(model: Model) -> None:
    for parameter, gradient in zip(model.parameters(), gradients(model, slice(3)), strict=True):
        assert gradient.shape == parameter.shape
        assert gradient.abs().sum() > 0


def test_accumulated_gradients_equal_those_of_the_whole_batch(model: Model) -> None:
    whole, parts = gradients(model, slice(3)), gradients(model, slice(1), slice(1, 3))
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-12)


def test_recorded_maps_are_distributions_over_source_tokens(model: Model) -> None:
    source, target = padded(), random_ids(3, 6, 1)
    with record_maps(model, kinds=["cross"]) as recorded:
        logits = model(source, target)
    torch.testing.assert_close(logits, model(source, target))
    maps = stack_weights(recorded["cross"])  # [L, B, H, T, S]
    assert len(maps) == len(attention_layers(model)["cross"])
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1], dtype=maps.dtype))
    assert not maps[:, source[:, None, None, :].expand(maps.shape[1:]) == 0].any()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_a_few_updates_lower_the_loss(kind: str, precision: str) -> None:
    model = tiny_model(SIZE, dropout=0.2, **MODEL_TYPES[kind])
    worker = GradientWorker(model, precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batch, losses = batch_of(slice(3)), []
    for _ in range(12):
        loss = worker.losses(batch, LossOptions())
        worker.backward(loss.total, batch.tokens)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.nll.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("kind", BASELINES)
def test_missing_source_missing_target_or_padded_target_raises(kind: str) -> None:
    model = build(BASELINES[kind])
    with pytest.raises(ValueError, match="needs a source"):
        model.start(None)
    with pytest.raises(ValueError, match="needs target ids"):
        model.hidden(padded(), None)
    with pytest.raises(ValueError, match="are not padded"):
        model.advance(random_ids(3, 2), model.start(padded()), torch.ones(3, 2, dtype=torch.bool))
