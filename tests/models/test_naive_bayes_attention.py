"""Naive Bayes with attention as its weights, beside the formula with tables."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from attnkit.layers import MultiHead
from attnkit.models import NaiveBayesAttention, build
from attnkit.recipe.schema import AttentionConfig, Layers, ModelConfig, NaiveBayesConfig, Roles

SIZE, WIDTH = 11, 6
IDS = torch.tensor([[2, 5, 7, 5, 8, 10], [2, 4, 4, 6, 3, 9]])


def make(layers: int = 1, residual: Any = "none", **more: Any) -> NaiveBayesAttention:
    torch.manual_seed(3)
    options: dict[str, Any] = {"heads": 1} | more
    section = ModelConfig(
        type="naive-bayes-attention",
        shape="decoder",
        width=WIDTH,
        positions="none",
        **options,
        tie="none",
        layers=Layers(encoder=0, decoder=layers),
        naive_bayes=NaiveBayesConfig(residual=residual),
    )
    model = build(section, (SIZE, SIZE), 32).double().eval()
    assert isinstance(model, NaiveBayesAttention)
    return model


def layer_of(model: NaiveBayesAttention, number: int) -> MultiHead:
    return [part for part in model.modules() if isinstance(part, MultiHead)][number]


def projected(layer: MultiHead, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v [..., W] of a layer of one head; v with the output projection."""
    assert layer.q is not None
    assert layer.k is not None
    assert layer.v is not None
    return layer.q(x) * WIDTH**-0.5, layer.k(x), layer.o(layer.v(x))


def tables(model: NaiveBayesAttention) -> tuple[Tensor, Tensor, Tensor]:
    """q(a) and k(a), whose product is the score, and v(a): [V, W] each."""
    return projected(layer_of(model, 0), model.embed_target(torch.arange(SIZE))[..., :WIDTH])


def naive_bayes(model: NaiveBayesAttention, ids: Tensor, residual: str) -> Tensor:
    """sum_j a_tj log p(x_t | x_j), with p(x | a) normalised, plus the residual; log-softmax."""
    q, k, v = tables(model)
    w = model.output.weight
    pair = (v @ w[:, :WIDTH].t()).log_softmax(-1)
    last = pair
    if residual == "own":
        own = model.embed_target(torch.arange(SIZE))[..., WIDTH:]
        last = (own @ w[:, WIDTH:].t()).log_softmax(-1)
    out = []
    for end in range(1, ids.shape[1] + 1):
        past = ids[:, :end]
        a = (q[past[:, -1]][:, None] @ k[past].transpose(1, 2)).softmax(-1)  # [B, 1, t - 1]
        logits = (a @ pair[past])[:, 0]
        if residual != "none":
            logits = logits + last[past[:, -1]]
        out.append(logits.log_softmax(-1))
    return torch.stack(out, 1)


@pytest.mark.parametrize("residual", ["none", "shared", "own"])
def test_one_layer_of_attention_is_naive_bayes_with_learned_weights(residual: str) -> None:
    model = make(residual=residual)
    out = model(None, IDS).log_softmax(-1)
    assert_close(out, naive_bayes(model, IDS, residual), atol=1e-6, rtol=0)


def stacked(model: NaiveBayesAttention, count: int, shared: bool) -> Tensor:
    """`count` layers by hand, with explicit softmax."""
    z = model.embed_target(IDS)
    length = IDS.shape[1]
    hidden = torch.ones(length, length).tril() == 0
    for number in range(count):
        q, k, v = projected(layer_of(model, number), z)
        scores = q @ k.transpose(1, 2)
        z = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v + (v if shared else 0)
    logits: Tensor = model.output(z)
    return logits


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("residual", ["none", "shared"])
def test_layers_attend_to_what_the_layers_before_predict(layers: int, residual: str) -> None:
    model = make(layers, residual)
    assert_close(model(None, IDS), stacked(model, layers, residual == "shared"))


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("residual", ["none", "shared", "own"])
def test_only_the_last_token_has_a_place_of_its_own_in_one_layer(layers: int, residual: str) -> None:
    model = make(layers, residual)
    swapped = IDS[:, [0, 3, 2, 1, 4, 5]]
    one, other = (model(None, ids)[:, -1] for ids in (IDS, swapped))
    assert torch.allclose(one, other) == (layers == 1)


@pytest.mark.parametrize("residual", ["none", "shared", "own"])
def test_steps_are_the_whole(residual: str) -> None:
    model = make(2, residual)
    whole = model(None, IDS)
    state = model.start(torch.nn.functional.pad(IDS[:, :2], (0, 2)))
    for column in range(2, IDS.shape[1]):
        out, state = model.step(IDS[:, column : column + 1], state)
        assert_close(out[:, 0], whole[:, column])


def test_shared_values_of_grouped_heads_are_those_of_heads_of_their_own() -> None:
    grouped, plain = (
        make(
            1,
            "shared",
            heads=2,
            attention=Roles(decoder=AttentionConfig.model_validate({"name": "scaled-dot", "key_heads": count})),
        )
        for count in (1, 2)
    )
    weights = grouped.state_dict()
    for name, tensor in plain.state_dict().items():
        if tensor.shape != weights[name].shape:  # keys and values
            weights[name] = weights[name].repeat(2, *[1] * (tensor.dim() - 1))
    plain.load_state_dict(weights)
    assert_close(grouped(None, IDS), plain(None, IDS))
