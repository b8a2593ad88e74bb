"""Path attention against its product of matrices, token by token."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask, scored
from attnkit.layers import MultiHead
from attnkit.mechanisms import path
from attnkit.ops import recomputed_chunks


def plain(q: Tensor, k: Tensor, gates: Tensor) -> Tensor:
    """The map [B, H, T, T] by a walk from each query back to each key."""
    w, strength = F.normalize(gates[..., :-1], dim=-1), 2 * gates[..., -1:].sigmoid()
    rows = torch.full((*q.shape[:3], q.shape[2]), -torch.inf, dtype=q.dtype)
    for i in range(q.shape[2]):
        seen = q[:, :, i] * q.shape[-1] ** -0.5
        for j in range(i, -1, -1):
            rows[:, :, i, j] = (seen * k[:, :, j]).sum(-1)
            along = (seen * w[:, :, j]).sum(-1, keepdim=True)
            seen = seen - strength[:, :, j] * along * w[:, :, j]
    return rows.softmax(-1)


def test_chunks_are_the_product_from_key_to_query() -> None:
    torch.manual_seed(0)
    layer = MultiHead.build("path", 24, 2, 200, causal=True).double()
    x = torch.randn(2, 150, 24).double()
    mask = Mask.packed(150, x.device, causal=True)
    q, k, _, gates, _ = layer.project(x, mask)
    assert q is not None
    assert k is not None
    assert gates is not None
    torch.testing.assert_close(layer.weights(x, mask), plain(q, k, gates))


@pytest.mark.parametrize("options", [{}, {"logit_cap": 3.0, "entropy_scale": True}], ids=str)
@pytest.mark.parametrize("length", [63, 64, 65, 150])
def test_chunks_by_themselves_give_what_all_scores_at_once_give(
    length: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers, states and gradients, with pads, with a bias and behind a state."""
    torch.manual_seed(4)
    made = MultiHead.build("path", 16, 2, 200, causal=True, **options).double()
    valid = torch.ones(2, length + 5, dtype=torch.bool)
    valid[0, :9] = False
    x = torch.randn(2, length + 5, 16, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(1, 2, length + 5, length + 5, dtype=torch.float64, requires_grad=True)
    found = []
    for long in (2**60, 0):
        monkeypatch.setattr(scored, "LONG", long)
        whole = made(x, Mask.of(valid, length + 5, causal=True), bias=bias)
        first = made(x[:, :5], Mask.of(valid[:, :5], 5, causal=True))
        later = made(x[:, 5:], Mask.of(valid, length, causal=True), state=first.state)
        with torch.no_grad():
            unseen = made(x, Mask.of(valid, length + 5, causal=True), bias=bias).y
        real = valid[:, :, None]
        torch.testing.assert_close(unseen * real, whole.y * real)
        total = (whole.y * real).sin().sum() + (later.y * real[:, 5:]).cos().sum()
        grads = torch.autograd.grad(total, [x, bias, *made.parameters()])
        found.append([whole.y * real, later.y * real[:, 5:], *later.state, *grads])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


def test_gradients_of_chunks_meet_the_noise_of_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored, "LONG", 0)
    options = {"attention_dropout": 0.4, "score_noise": 0.5}
    made = MultiHead.build("path", 16, 2, 200, causal=True, **options).double().train()
    x = torch.randn(2, 150, 16, dtype=torch.float64, requires_grad=True)
    found = []
    for kept in (False, True):
        if kept:
            monkeypatch.setattr(path, "recomputed", recomputed_chunks.in_turn)
        torch.manual_seed(6)
        y = made(x, Mask.packed(150, x.device, causal=True)).y
        found.append([y, *torch.autograd.grad(y.sin().sum(), [x, *made.parameters()])])
    torch.testing.assert_close(*found)
