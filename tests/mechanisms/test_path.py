"""Tests of path attention: the product of matrices from key to query, in chunks and token by token."""

from typing import Any

import pytest
import torch
from helpers.tensors import assert_same_for_each, packed, valid_tokens
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask, scored
from attnkit.layers import MultiHead
from attnkit.mechanisms import path
from attnkit.ops import recomputed_chunks


def formula(q: Tensor, k: Tensor, gates: Tensor) -> Tensor:
    """Return the map [B, H, T, T], computed from each query back to each key."""
    w, strength = F.normalize(gates[..., :-1], dim=-1), 2 * gates[..., -1:].sigmoid()
    scores = torch.full((*q.shape[:3], q.shape[2]), -torch.inf, dtype=q.dtype)
    for i in range(q.shape[2]):
        query = q[:, :, i] * q.shape[-1] ** -0.5
        for j in range(i, -1, -1):
            scores[:, :, i, j] = (query * k[:, :, j]).sum(-1)
            along = (query * w[:, :, j]).sum(-1, keepdim=True)
            query = query - strength[:, :, j] * along * w[:, :, j]
    return scores.softmax(-1)


def test_weights_equal_the_formula() -> None:
    torch.manual_seed(0)
    layer = MultiHead.build("path", 24, 2, 200, causal=True).double()
    x = torch.randn(2, 150, 24).double()
    projected: Any = layer.project(x, packed(150))
    expected = formula(projected.q, projected.k, projected.gates)
    torch.testing.assert_close(layer.weights(x, packed(150)), expected)


@pytest.mark.parametrize("options", [{}, {"logit_cap": 3.0, "entropy_scale": True}], ids=str)
@pytest.mark.parametrize("length", [63, 64, 65, 150])
def test_chunks_equal_all_scores_at_once(
    length: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs, states and gradients: with padding, with a bias and after a state."""
    torch.manual_seed(4)
    layer = MultiHead.build("path", 16, 2, 200, causal=True, **options).double()
    valid = valid_tokens(length + 5, slice(9), slice(0))
    x = torch.randn(2, length + 5, 16, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(1, 2, length + 5, length + 5, dtype=torch.float64, requires_grad=True)

    def compute() -> list[Tensor]:
        whole = layer(x, Mask.of(valid, length + 5, causal=True), bias=bias)
        first = layer(x[:, :5], Mask.of(valid[:, :5], 5, causal=True))
        later = layer(x[:, 5:], Mask.of(valid, length, causal=True), state=first.state)
        with torch.no_grad():
            without_grad = layer(x, Mask.of(valid, length + 5, causal=True), bias=bias).y
        real = valid[:, :, None]
        torch.testing.assert_close(without_grad * real, whole.y * real)
        total = (whole.y * real).sin().sum() + (later.y * real[:, 5:]).cos().sum()
        gradients = torch.autograd.grad(total, [x, bias, *layer.parameters()])
        return [whole.y * real, later.y * real[:, 5:], *later.state, *gradients]

    assert_same_for_each(monkeypatch, scored, "LONG", (2**60, 0), compute, rtol=1e-9, atol=1e-11)


def test_gradients_of_chunks_use_the_noise_of_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored, "LONG", 0)
    options = {"attention_dropout": 0.4, "score_noise": 0.5}
    layer = MultiHead.build("path", 16, 2, 200, causal=True, **options).double().train()
    x = torch.randn(2, 150, 16, dtype=torch.float64, requires_grad=True)

    def compute() -> list[Tensor]:
        torch.manual_seed(6)
        y = layer(x, packed(150)).y
        return [y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])]

    functions = path.recomputed, recomputed_chunks.in_turn
    assert_same_for_each(monkeypatch, path, "recomputed", functions, compute)
