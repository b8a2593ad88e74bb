"""Tests of naive Bayes with attention weights against the formula with tables."""

from typing import Any

import pytest
import torch
from helpers.tiny_models import tiny_model
from torch import Tensor
from torch.testing import assert_close

from attnkit.layers import MultiHead

SIZE, WIDTH = 11, 6
IDS = torch.tensor([[2, 5, 7, 5, 8, 10], [2, 4, 4, 6, 3, 9]])


def make(layers: int = 1, residual: str = "none", **options: Any) -> Any:
    defaults = {"type": "naive-bayes-attention", "shape": "decoder", "positions": "none", "tie": "none"}
    sizes = {"width": WIDTH, "heads": 1, "layers": {"encoder": 0, "decoder": layers}}
    naive_bayes = {"residual": residual}
    return tiny_model(SIZE, seed=3, **defaults | sizes | {"naive_bayes": naive_bayes} | options).double().eval()


def projected(model: Any, number: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v [..., W] of a layer of one head; v with the output projection."""
    layer: Any = [part for part in model.modules() if isinstance(part, MultiHead)][number]
    return layer.q(x) * WIDTH**-0.5, layer.k(x), layer.o(layer.v(x))


def formula(model: Any, residual: str) -> Tensor:
    """Return the log-softmax of sum_j a_tj log p(x_t | x_j), with p(x | a) normalized, plus the residual."""
    embedded, w = model.embed_target(torch.arange(SIZE)), model.output.weight
    # q(a) and k(a), whose product is the score, and v(a): [V, W] each
    q, k, v = projected(model, 0, embedded[..., :WIDTH])
    last = pair = (v @ w[:, :WIDTH].t()).log_softmax(-1)
    if residual == "own":
        last = (embedded[..., WIDTH:] @ w[:, WIDTH:].t()).log_softmax(-1)
    outputs = []
    for end in range(1, IDS.shape[1] + 1):
        past = IDS[:, :end]
        a = (q[past[:, -1]][:, None] @ k[past].transpose(1, 2)).softmax(-1)  # [B, 1, t - 1]
        logits = (a @ pair[past])[:, 0]
        if residual != "none":
            logits = logits + last[past[:, -1]]
        outputs.append(logits.log_softmax(-1))
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("residual", ["none", "shared", "own"])
def test_one_layer_is_naive_bayes_with_learned_weights(residual: str) -> None:
    model = make(residual=residual)
    assert_close(model(None, IDS).log_softmax(-1), formula(model, residual), atol=1e-6, rtol=0)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("residual", ["none", "shared"])
def test_layers_attend_to_the_output_of_earlier_layers(layers: int, residual: str) -> None:
    model = make(layers, residual)
    z = model.embed_target(IDS)
    hidden = torch.ones(IDS.shape[1], IDS.shape[1]).tril() == 0
    for number in range(layers):
        q, k, v = projected(model, number, z)
        scores = (q @ k.transpose(1, 2)).masked_fill(hidden, -torch.inf)
        z = scores.softmax(-1) @ v + (v if residual == "shared" else 0)
    assert_close(model(None, IDS), model.output(z))


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("residual", ["none", "shared", "own"])
def test_order_of_earlier_tokens_matters_to_several_layers_only(layers: int, residual: str) -> None:
    model = make(layers, residual)
    first, swapped = (model(None, ids)[:, -1] for ids in (IDS, IDS[:, [0, 3, 2, 1, 4, 5]]))
    assert torch.allclose(first, swapped) == (layers == 1)


@pytest.mark.parametrize("residual", ["none", "shared", "own"])
def test_steps_equal_one_pass(residual: str) -> None:
    model = make(2, residual)
    whole = model(None, IDS)
    state = model.start(torch.nn.functional.pad(IDS[:, :2], (0, 2)))
    for column in range(2, IDS.shape[1]):
        logits, state = model.step(IDS[:, column : column + 1], state)
        assert_close(logits[:, 0], whole[:, column])


def test_grouped_heads_equal_heads_with_repeated_keys_and_values() -> None:
    grouped, plain = (
        make(1, "shared", heads=2, attention={"decoder": {"name": "scaled-dot", "key_heads": count}})
        for count in (1, 2)
    )
    weights = grouped.state_dict()
    for name, tensor in plain.state_dict().items():
        if tensor.shape != weights[name].shape:  # keys and values
            weights[name] = weights[name].repeat(2, *[1] * (tensor.dim() - 1))
    plain.load_state_dict(weights)
    assert_close(grouped(None, IDS), plain(None, IDS))
