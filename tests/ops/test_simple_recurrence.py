"""Tests of the fast recurrence of simple recurrent units against a plain loop."""

import pytest
import torch
from torch import Tensor

from attnkit.ops import fast_cpu
from attnkit.ops.simple_recurrence import plain_recurrence, simple_recurrence


def inputs(length: int) -> tuple[Tensor, ...]:
    torch.manual_seed(length)
    sizes = ((3, length, 4), (3, length, 4), (4,), (3, 4))
    return tuple(torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in sizes)


@pytest.mark.parametrize("length", [1, 2, 9])
def test_states_and_gradients_equal_those_of_the_plain_loop(length: int) -> None:
    tensors, results = inputs(length), []
    for recurrence in (simple_recurrence, plain_recurrence):
        states = recurrence(*tensors)
        assert states.shape == (3, length, 4)
        loss = (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum()
        results.append((states, *torch.autograd.grad(loss, tensors)))
    torch.testing.assert_close(*results)


def test_second_derivative_needs_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = inputs(3)
    (gradient,) = torch.autograd.grad(plain_recurrence(*tensors).sum(), tensors[:1], create_graph=True)
    assert gradient.requires_grad
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(simple_recurrence(*tensors).sum(), tensors[:1], create_graph=True)
    monkeypatch.setattr(fast_cpu, "PLAIN", True)
    torch.autograd.grad(simple_recurrence(*tensors).sum(), tensors, create_graph=True)


def test_worked_number() -> None:
    """Gates of a half and, after c_1 = 2, of sigmoid(ln 3) = 3/4."""
    x = torch.tensor([[[4.0], [-2.0]]])
    g = torch.tensor([[[0.0], [torch.tensor(3.0).log() - 2]]])
    states = simple_recurrence(x, g, torch.ones(1), torch.zeros(1, 1))
    torch.testing.assert_close(states, torch.tensor([[[2.0], [1.0]]]))
