"""Decaying linear attention: chunks, steps and the definition are one recurrence."""

import pytest
import torch
from torch import Tensor

from attnkit.attention import Mask, Shape
from attnkit.layers import MultiHead
from attnkit.mechanisms.decay import Decay, chunked


def formula(q: Tensor, k: Tensor, v: Tensor, logs: Tensor, state: Tensor) -> Tensor:
    """S_t = a_t S + k_t v_t^T, y_t = S_t^T q_t."""
    answers = []
    for t in range(k.shape[2]):
        decay = logs[:, :, t, :, None].exp()
        state = decay * state + k[:, :, t, :, None] * v[:, :, t, None, :]
        answers.append((q[:, :, t, None, :] @ state).squeeze(2))
    return torch.stack(answers, 2)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("rate", [0.0, 0.05, 2.0, 100.0])
@pytest.mark.parametrize("wide", [1, 5])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 150])
def test_chunks_are_the_formula_forward_and_backward(length: int, wide: int, rate: float) -> None:
    generator = torch.Generator().manual_seed(length)
    sizes = [(length, 5), (length, 5), (length, 4), (length, wide), (5, 4)]
    q, k, v, logs, state = (torch.randn(2, 3, *size, generator=generator).double() for size in sizes)
    given = [x.requires_grad_() for x in (q, k, v, -logs.abs() * rate, state)]
    y, _ = chunked(*given)
    wanted = formula(*given)
    torch.testing.assert_close(y, wanted)
    found = torch.autograd.grad(y.square().sum(), given)
    right = torch.autograd.grad(wanted.square().sum(), given)
    torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-8)


def test_the_decays_of_the_heads_are_those_of_retnet() -> None:
    x = torch.ones(1, 3, 9, 1).double()
    maps = Decay(Shape(3, 1, 9)).weights(x, x, x, Mask.packed(9, x.device, causal=True))
    for head, decay in enumerate((1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128)):
        expected = torch.tensor([decay**back for back in range(8, -1, -1)]).double()
        torch.testing.assert_close(maps[0, head, 8], expected, rtol=1e-6, atol=0)


def test_the_gate_of_a_channel_is_the_sixteenth_root_of_a_sigmoid() -> None:
    gates, k = torch.randn(1, 2, 3, 4).double(), torch.zeros(1, 2, 3, 4).double()
    logs = Decay(Shape(2, 4, 9), gate="channel").log_decay(k, gates)
    torch.testing.assert_close(logs.exp(), gates.sigmoid() ** (1 / 16))


@pytest.mark.parametrize("gate", ["head", "channel"])
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_gates_have_finite_gradients(gate: str, size: float) -> None:
    torch.manual_seed(1)
    layer = MultiHead.build("decay", 12, 3, 300, causal=True, gate=gate)
    x = (torch.randn(1, 100, 12) * 3).requires_grad_()
    with torch.no_grad():
        assert layer.g is not None
        layer.g.bias.fill_(size)
    y = layer(x, Mask.packed(100, x.device, causal=True)).y
    grads = torch.autograd.grad(y.sum(), [x, *layer.parameters()])
    assert all(one.isfinite().all() for one in (y, *grads))
