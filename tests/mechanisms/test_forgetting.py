"""Tests of forgetting attention: the softmax with a running decay."""

from unittest.mock import patch

import pytest
import torch
from helpers.tensors import packed, sequences, trainable, valid_tokens, with_gradients
from torch.nn import functional as F

from attnkit.attention import Mask, Shape
from attnkit.layers import MultiHead
from attnkit.mechanisms.forgetting import Forgetting


@pytest.mark.parametrize("length", [1, 2, 33])
def test_weights_equal_the_definition(length: int) -> None:
    q, k, v, gates = sequences(length, 4, 4, 4, 1)
    logs = F.logsigmoid(gates[..., 0] + 0.5)
    scores = q @ k.transpose(-1, -2) / 2
    for i in range(length):
        for j in range(length):
            between = logs[..., j + 1 : i + 1].sum(-1)
            scores[..., i, j] = scores[..., i, j] + between if j <= i else -torch.inf
    mechanism = Forgetting(Shape(3, 4, 99), gate_bias=0.5)
    torch.testing.assert_close(mechanism.weights(q, k, v, packed(length), gates=gates), scores.softmax(-1))


@pytest.mark.parametrize("heads", [3, 1])
def test_fused_kernel_equals_the_plain_path_forward_and_backward(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, gates = sequences(300, 4, 4, 4, 1)
    inputs = trainable([q, k[:, :heads], v[:, :heads], gates])
    mechanism = Forgetting(Shape(3, 4, 300), key_heads=heads)
    right = valid_tokens(300, slice(280, None), slice(0))
    mixed = valid_tokens(300, slice(7), slice(100, 130))
    for mask, valid in ((packed(300), right), (Mask.of(right, 300, True), right), (Mask.of(mixed, 300, True), mixed)):
        results = []
        for limit in (0, 10**9):
            monkeypatch.setattr("attnkit.ops.fast_cpu.PLAIN_UP_TO", limit)
            monkeypatch.setattr("attnkit.mechanisms.forgetting.PLAIN_UP_TO", limit)
            y = mechanism(*inputs[:3], mask, gates=inputs[3]).y.transpose(1, 2)[valid]
            results.append(with_gradients(y, inputs))
        torch.testing.assert_close(*results)


@torch.no_grad()
def test_fused_kernel_is_used_with_a_cache() -> None:
    layer = MultiHead.build("forgetting", 12, 3, 400, causal=True).double().eval()
    x, with_decay, used = torch.randn(1, 330, 12).double(), Forgetting.with_decay, []

    def watched(*arguments: object) -> torch.Tensor | None:
        y = with_decay(*arguments)  # type: ignore[arg-type]
        used.append(y is not None)
        return y

    with patch.object(Forgetting, "with_decay", watched):
        whole = layer(x, packed(330)).y
        state = layer(x[:, :20], packed(20)).state
        rest = layer(x[:, 20:], packed(330, start=20), state=state).y
    torch.testing.assert_close(rest, whole[:, 20:])
    assert used == [True, True]  # the short sequence is computed by products
