"""Tests of linear attention with decay: chunks against the recurrence, the decays of heads and gates."""

import pytest
import torch
from helpers.tensors import packed, sequences, trainable, with_gradients
from torch import Tensor

from attnkit.attention import Shape
from attnkit.layers import MultiHead
from attnkit.mechanisms.decay import Decay, chunked


def formula(q: Tensor, k: Tensor, v: Tensor, logs: Tensor, state: Tensor) -> Tensor:
    """Compute S_t = a_t S + k_t v_t^T, y_t = S_t^T q_t."""
    outputs = []
    for t in range(k.shape[2]):
        decay = logs[:, :, t, :, None].exp()
        state = decay * state + k[:, :, t, :, None] * v[:, :, t, None, :]
        outputs.append((q[:, :, t, None, :] @ state).squeeze(2))
    return torch.stack(outputs, 2)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("rate", [0.0, 0.05, 2.0, 100.0])
@pytest.mark.parametrize("wide", [1, 5])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 150])
def test_chunks_equal_the_formula_forward_and_backward(length: int, wide: int, rate: float) -> None:
    q, k, v, logs = sequences(length, 5, 5, 4, wide)
    inputs = trainable([q, k, v, -logs.abs() * rate, *sequences(5, 4)])
    y, *gradients = with_gradients(chunked(*inputs)[0], inputs)
    expected, *expected_gradients = with_gradients(formula(*inputs), inputs)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-6, atol=1e-8)


def test_decays_of_the_heads_are_those_of_retnet() -> None:
    x = torch.ones(1, 3, 9, 1).double()
    maps = Decay(Shape(3, 1, 9)).weights(x, x, x, packed(9))
    for head, decay in enumerate((1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128)):
        expected = torch.tensor([decay**distance for distance in range(8, -1, -1)]).double()
        torch.testing.assert_close(maps[0, head, 8], expected, rtol=1e-6, atol=0)


def test_gate_of_a_channel_is_the_sixteenth_root_of_a_sigmoid() -> None:
    gates, k = torch.randn(1, 2, 3, 4).double(), torch.zeros(1, 2, 3, 4).double()
    logs = Decay(Shape(2, 4, 9), gate="channel").log_decay(k, gates)
    torch.testing.assert_close(logs.exp(), gates.sigmoid() ** (1 / 16))


@pytest.mark.parametrize("gate", ["head", "channel"])
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_gates_have_finite_gradients(gate: str, size: float) -> None:
    torch.manual_seed(1)
    layer = MultiHead.build("decay", 12, 3, 300, causal=True, gate=gate)
    x = (torch.randn(1, 100, 12) * 3).requires_grad_()
    torch.nn.init.constant_(layer.g.bias, size)  # type: ignore[union-attr]
    results = with_gradients(layer(x, packed(100)).y, [x, *layer.parameters()])
    assert all(tensor.isfinite().all() for tensor in results)
