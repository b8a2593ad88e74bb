"""Forgetting attention: the softmax with a running decay."""

import pytest
import torch
from torch.nn import functional as F

from attnkit.attention import Mask, Shape
from attnkit.layers import MultiHead
from attnkit.mechanisms.forgetting import Forgetting


def drawn(length: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    sizes = (4, 4, 4, 1)
    return [torch.randn(2, 3, length, size, generator=generator).double() for size in sizes]


@pytest.mark.parametrize("length", [1, 2, 33])
def test_it_is_the_sum_of_the_definition(length: int) -> None:
    q, k, v, gates = drawn(length)
    logs = F.logsigmoid(gates[..., 0] + 0.5)
    scores = q @ k.transpose(-1, -2) / 2
    for i in range(length):
        for j in range(length):
            between = logs[..., j + 1 : i + 1].sum(-1)
            scores[..., i, j] = scores[..., i, j] + between if j <= i else -torch.inf
    mask = Mask.packed(length, q.device, causal=True)
    made = Forgetting(Shape(3, 4, 99), gate_bias=0.5)
    torch.testing.assert_close(made.weights(q, k, v, mask, gates=gates), scores.softmax(-1))


@pytest.mark.parametrize("heads", [3, 1])
def test_the_fused_kernel_is_the_plain_path_with_its_gradients(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, gates = drawn(300)
    given = [x.requires_grad_() for x in (q, k[:, :heads], v[:, :heads], gates)]
    made = Forgetting(Shape(3, 4, 300), key_heads=heads)
    right, any_ = torch.ones(2, 300, dtype=torch.bool), torch.ones(2, 300, dtype=torch.bool)
    right[0, 280:], any_[0, :7], any_[1, 100:130] = False, False, False
    packed = Mask.packed(300, q.device, causal=True)
    for mask, valid in ((packed, right), (Mask.of(right, 300, True), right), (Mask.of(any_, 300, True), any_)):
        found = []
        for limit in (0, 10**9):
            monkeypatch.setattr("attnkit.ops.fast_cpu.PLAIN_UP_TO", limit)
            monkeypatch.setattr("attnkit.mechanisms.forgetting.PLAIN_UP_TO", limit)
            y = made(*given[:3], mask, gates=given[3]).y.transpose(1, 2)[valid]
            found.append([y, *torch.autograd.grad(y.square().sum(), given)])
        torch.testing.assert_close(*found)


def test_the_fused_kernel_is_taken_from_a_cache_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = MultiHead.build("forgetting", 12, 3, 400, causal=True).double().eval()
    x, calls = torch.randn(1, 330, 12).double(), list[bool]()
    with_decay = Forgetting.with_decay

    def counted(*given: object) -> torch.Tensor | None:
        y = with_decay(*given)  # type: ignore[arg-type]
        calls.append(y is not None)
        return y

    monkeypatch.setattr(Forgetting, "with_decay", counted)
    with torch.no_grad():
        whole = layer(x, Mask.packed(330, x.device, causal=True)).y
        state = layer(x[:, :20], Mask.packed(20, x.device, causal=True)).state
        rest = layer(x[:, 20:], Mask.packed(330, x.device, causal=True, start=20), state=state).y
    torch.testing.assert_close(rest, whole[:, 20:])
    assert calls == [True, True]  # the short one is left to products
