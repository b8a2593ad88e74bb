"""What every type of model promises: caches, padding, beams, causality, gradients."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers.map_recording import record_maps, stack_weights
from helpers.model_types import BASELINES, MODEL_TYPES
from torch import Tensor

from attnkit import mechanisms
from attnkit.analysis.recorder import attention_layers
from attnkit.data.batch import Batch
from attnkit.models import Decode, Model, build
from attnkit.recipe.schema import AttentionConfig, Layers, ModelConfig, Roles, SearchConfig
from attnkit.search.decoding import search
from attnkit.train.loss import LossOptions
from attnkit.train.precision import GradientWorker

SIZE = 23
SMALL = {"width": 16, "ff": 24, "heads": 4, "layers": Layers(encoder=2, decoder=2), "dropout": 0.2}


def make(options: dict[str, Any]) -> Model:
    torch.manual_seed(5)
    model = build(ModelConfig(**SMALL | options), (SIZE, SIZE), 40).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # what starts at zero has an effect too
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def ids(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(4, SIZE, (rows, length), generator=torch.Generator().manual_seed(seed))


def padded() -> Tensor:
    source = ids(3, 9)
    source[1, 5:] = 0
    source[2, 1:] = 0
    return source


@pytest.fixture(params=MODEL_TYPES)
def model(request: pytest.FixtureRequest) -> Model:
    return make(MODEL_TYPES[request.param])


def assert_steps_equal_one_pass(model: Model) -> None:
    source, target = padded(), ids(3, 12, 1)
    with torch.no_grad():
        whole = model(source, target)
        state, logits = model.start(source), []
        for start, end in ((0, 1), (1, 5), (5, 6), (6, 12)):
            part, state = model.step(target[:, start:end], state)
            logits.append(part)
    torch.testing.assert_close(torch.cat(logits, 1), whole)


def test_cached_steps_equal_one_pass(model: Model) -> None:
    assert_steps_equal_one_pass(model)


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


@pytest.mark.parametrize("options", TRANSFORMERS, ids=str)
@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder"])
def test_transformers_of_every_kind_have_caches_and_batches(shape: str, options: dict[str, Any]) -> None:
    model = make(options | {"shape": shape})
    assert_steps_equal_one_pass(model)
    assert_batched_rows_equal_rows_alone(model)


ACROSS = [word for word in mechanisms.names() if mechanisms.facts(word).cross and not mechanisms.facts(word).composite]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ["lstm-additive", "convs2s"])
@pytest.mark.parametrize("word", ACROSS)
def test_every_mechanism_of_cross_attention_fits(kind: str, word: str) -> None:
    attention = Roles(cross=AttentionConfig(name=word))
    assert_steps_equal_one_pass(make(BASELINES[kind] | {"attention": attention, "heads": 2}))


def assert_batched_rows_equal_rows_alone(model: Model) -> None:
    source, target = padded(), ids(3, 6, 1)
    batch = model(source, target)
    for row, length in enumerate((9, 5, 1)):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        torch.testing.assert_close(alone, batch[row : row + 1])


def test_a_sentence_alone_equals_itself_in_a_padded_batch(model: Model) -> None:
    assert_batched_rows_equal_rows_alone(model)


def test_beams_are_reordered_and_sentences_leave(model: Model) -> None:
    source, target = padded(), ids(3, 1, 1)
    more = ids(6, 4, 2)
    with torch.no_grad():
        _, state = model.step(target, model.start(source))
        state = state.select(torch.arange(3).repeat_interleave(2), None)
        _, state = model.step(more[:, :2], state)
        # the beams of sentence 1 leave; those of 0 swap, of those of 2 one is doubled
        order = torch.tensor([1, 0, 5, 5])
        state = state.select(order, torch.tensor([0, 2]))
        assert isinstance(state, Decode)
        last, _ = model.step(more[:4, 2:], state, last=True)
        rows = torch.cat((target.repeat_interleave(2, 0), more[:, :2]), 1)[order]
        whole = model(source[[0, 0, 2, 2]], torch.cat((rows, more[:4, 2:]), 1))
    torch.testing.assert_close(last, whole[:, -1:])


def test_a_beam_of_one_is_greedy(model: Model) -> None:
    source = padded()
    found = [
        search(model, source, SearchConfig(method=method, beam=1, max_length=9), lines=range(3))
        for method in ("greedy", "beam")
    ]
    greedy, beam = ([(best.ids, best.complete) for (best,) in n_best] for n_best in found)
    assert greedy == beam
    assert any(ids for ids, _ in greedy)


def test_the_future_changes_nothing(model: Model) -> None:
    source, target = padded(), ids(3, 8, 1)
    changed = target.clone()
    changed[:, 5:] = ids(3, 3, 7)
    before, after = model(source, target), model(source, changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=1e-12)
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_every_token_of_the_source_counts_from_the_first_step_on(model: Model) -> None:
    source, target = padded(), ids(3, 2, 1)
    before = model(source, target)[:, 0]
    for place in range(9):
        changed = source.clone()
        changed[0, place] = (source[0, place] - 3) % (SIZE - 4) + 4
        after = model(changed, target)[:, 0]
        assert not torch.allclose(after[0], before[0])
        torch.testing.assert_close(after[1:], before[1:])


def batch_of(rows: slice) -> Batch:
    source, target = padded()[rows], ids(3, 7, 1)
    target[0, 5:] = 0
    target = target[rows]
    tokens = int((target[:, 1:] != 0).sum())
    return Batch(source, target[:, :-1], target[:, 1:], np.arange(len(source)), tokens)


def gradients(model: Model, batches: list[Batch]) -> list[Tensor]:
    worker = GradientWorker(model, "fp32")
    worker.model.eval()  # without dropout
    for batch in batches:
        worker.backward(worker.losses(batch, LossOptions(0.1)).total, 16)
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found


def test_a_gradient_reaches_every_parameter(model: Model) -> None:
    for parameter, grad in zip(model.parameters(), gradients(model, [batch_of(slice(3))]), strict=True):
        assert grad.shape == parameter.shape
        assert grad.abs().sum() > 0


def test_accumulated_gradients_are_those_of_the_whole_batch(model: Model) -> None:
    batches = [batch_of(rows) for rows in (slice(3), slice(1), slice(1, 3))]
    for whole, parts in zip(gradients(model, batches[:1]), gradients(model, batches[1:]), strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-9, atol=1e-12)


def test_maps_are_distributions_over_the_tokens_of_the_source(model: Model) -> None:
    source, target = padded(), ids(3, 6, 1)
    with record_maps(model, kinds=["cross"]) as found:
        before = model(source, target)
    torch.testing.assert_close(before, model(source, target))
    maps = stack_weights(found["cross"])  # [L, B, H, T, S]
    assert len(maps) == len(attention_layers(model)["cross"])
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1], dtype=maps.dtype))
    assert not maps[:, source[:, None, None, :].expand(maps.shape[1:]) == 0].any()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_a_few_updates_lower_the_loss(kind: str, precision: str) -> None:
    torch.manual_seed(5)
    model = build(ModelConfig(**SMALL | MODEL_TYPES[kind]), (SIZE, SIZE), 40)
    worker = GradientWorker(model, precision)
    stepper = torch.optim.AdamW(model.parameters(), lr=0.01)
    batch, losses = batch_of(slice(3)), []
    for _ in range(12):
        found = worker.losses(batch, LossOptions())
        worker.backward(found.total, batch.tokens)
        stepper.step()
        stepper.zero_grad(set_to_none=True)
        losses.append(found.nll.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("kind", BASELINES)
def test_an_encoder_decoder_refuses_what_it_cannot_read(kind: str) -> None:
    model = make(BASELINES[kind])
    with pytest.raises(ValueError, match="needs a source"):
        model.start(None)
    with pytest.raises(ValueError, match="needs target ids"):
        model.hidden(padded(), None)
    with pytest.raises(ValueError, match="are not padded"):
        model.advance(ids(3, 2), model.start(padded()), torch.ones(3, 2, dtype=torch.bool))
