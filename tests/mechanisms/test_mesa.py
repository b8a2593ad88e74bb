"""Tests of the mesa layer: ridge regression of values on keys, exact and by conjugate gradients."""

import math
from unittest.mock import Mock

import pytest
import torch
from helpers.tensors import assert_same_for_each, packed, sequences, trainable, valid_tokens, with_gradients
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask, Shape
from attnkit.mechanisms import mesa
from attnkit.mechanisms.mesa import Mesa
from attnkit.ops import conjugate_gradients, fast_cpu


def inputs(length: int, gates: int = 2) -> list[Tensor]:
    """Return q, k, v and gates, with values that float32 can represent."""
    return [x.float().double() for x in sequences(length, 4, 4, 5, gates)]


def build(decay: str = "scalar") -> Mesa:
    mechanism = Mesa(Shape(3, 4, 99), decay=decay).double()  # type: ignore[arg-type]
    torch.nn.init.normal_(mechanism.ridge, generator=torch.Generator().manual_seed(0))
    return mechanism


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 50])
def test_outputs_equal_the_recurrence_of_the_definition(length: int) -> None:
    q, k, v, gates = inputs(length)
    mechanism, y = build(), torch.empty_like(v)
    ridge = F.softplus(mechanism.ridge.detach()) + 0.25
    for row in range(2):
        for head in range(3):
            keys = torch.zeros(4, 4).double()
            values = torch.zeros(5, 4).double()
            for t in range(length):
                a, b = gates[row, head, t].sigmoid()
                query, key = (F.normalize(x[row, head, t], dim=0) for x in (q, k))
                keys = a * keys + b * torch.outer(key, key)
                values = a * values + b * torch.outer(v[row, head, t], key)
                y[row, head, t] = values @ torch.linalg.inv(keys + ridge[head].diag()) @ query
    torch.testing.assert_close(mechanism(q, k, v, packed(length), gates=gates).y, y)


@pytest.mark.parametrize("causal", [True, False])
def test_without_decay_it_is_the_least_squares_fit_of_all_values(causal: bool) -> None:
    """Ridge regression is least squares with one more row for each key channel."""
    q, k, v, gates = inputs(7, 1)
    mechanism = build("none")
    ridge = F.softplus(mechanism.ridge.detach()) + 0.25
    valid = valid_tokens(7, slice(5, None), slice(0))
    y = mechanism(q, k, v, Mask.of(valid, 7, causal=causal), gates=gates).y
    for row, length in enumerate((5, 7)):
        for t in range(length):
            visible = t + 1 if causal else length
            for head in range(3):
                root = gates[row, head, :visible].sigmoid().sqrt()
                rows = torch.cat((F.normalize(k[row, head, :visible], dim=-1) * root, ridge[head].sqrt().diag()))
                targets = F.pad(v[row, head, :visible] * root, (0, 0, 0, 4))
                fit = torch.linalg.lstsq(rows, targets).solution
                torch.testing.assert_close(y[row, head, t], F.normalize(q[row, head, t], dim=0) @ fit)


@pytest.mark.parametrize("gate", [1e4, -1e4])
def test_extreme_decays_are_finite(gate: float) -> None:
    q, k, v, gates = (x.float().requires_grad_() for x in inputs(40))
    gates = torch.cat((torch.full_like(gates[..., :1], gate), gates[..., 1:]), -1)
    y = build().float()(q, k, v, packed(40), gates=gates).y
    assert all(x.isfinite().all() for x in with_gradients(y, (q, k, v)))


def test_autocast_leaves_the_systems_in_32_bits() -> None:
    q, k, v, gates = (x.float() for x in inputs(60, 1))
    mechanism = build("none").float()
    expected = mechanism(q, k, v, packed(60), gates=gates).y
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(mechanism(q, k, v, packed(60), gates=gates).y, expected)


@pytest.mark.parametrize("decay", ["scalar", "none"])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(("length", "long"), [(2, 512), (28, 512), (64, 512), (65, 512), (130, 512), (130, 40)])
def test_conjugate_gradients_equal_exact_solutions_forward_and_backward(
    length: int, long: int, behind: bool, decay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With padding, and with or without the state of earlier tokens."""
    tensors = trainable(inputs(length + 3, 1 + (decay == "scalar")))
    mechanism = build(decay)
    monkeypatch.setattr(mesa, "solution", solution := Mock(wraps=mesa.solution))
    monkeypatch.setattr(conjugate_gradients, "BLOCK", 3 * 64 * 64)
    monkeypatch.setattr(mesa, "LONG", long)
    valid = valid_tokens(length + 3, slice(2), slice(length - 1, None))
    start = 3 if behind else 0

    def compute() -> list[Tensor]:
        state = None
        if behind:
            *first, gates = (x[:, :, :3] for x in tensors)
            state = mechanism(*first, Mask.of(valid[:, :3], 3, causal=True), gates=gates).state
        *later, gates = (x[:, :, start:] for x in tensors)
        mask = Mask.of(valid, length + 3 - start, causal=True, start=start)
        output = mechanism(*later, mask, state, gates=gates)
        y = output.y[valid[:, None, start:].expand(-1, 3, -1)]
        return with_gradients([y, output.state], [*tensors, mechanism.ridge])

    assert_same_for_each(monkeypatch, fast_cpu, "PLAIN", (True, False), compute, rtol=1e-8, atol=1e-10)
    assert solution.call_count >= 1 + behind


def test_systems_that_need_many_steps_are_solved_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, gates = inputs(20)
    mechanism = build()
    expected = mechanism(q, k, v, packed(20), gates=gates).y
    monkeypatch.setattr(conjugate_gradients, "STEPS", 1)
    monkeypatch.setattr(mesa, "solve_exactly", solve := Mock(wraps=mesa.solve_exactly))
    torch.testing.assert_close(mechanism(q, k, v, packed(20), gates=gates).y, expected)
    solve.assert_called()


@pytest.mark.parametrize("length", [20, 90])
def test_gradients_that_need_many_steps_are_solved_exactly(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = trainable(inputs(length))
    total = build()(*tensors[:3], packed(length), gates=tensors[3]).y.sin().sum()
    expected = torch.autograd.grad(total, tensors, retain_graph=True)
    monkeypatch.setattr(conjugate_gradients, "STEPS", 0)
    torch.testing.assert_close(torch.autograd.grad(total, tensors), expected)


@pytest.mark.parametrize("size", [1e-12, 1e-25, math.inf, math.nan])
def test_gradients_of_any_size_pass_through_the_systems(size: float) -> None:
    """An overflow in fp16 or a loss of NaN reaches the code that checks for it."""
    tensors = [x.float().requires_grad_() for x in inputs(28)]
    y = build().float()(*tensors[:3], packed(28), gates=tensors[3]).y
    expected = torch.autograd.grad(y.sum(), tensors, retain_graph=True)
    gradients = torch.autograd.grad((y * size).sum(), tensors)
    if math.isfinite(size):
        torch.testing.assert_close(tuple(x / size for x in gradients), expected, rtol=1e-3, atol=1e-4)
    else:
        assert not any(x.isfinite().any() for x in gradients)


def test_second_derivative_of_conjugate_gradients_raises() -> None:
    q, k, v, gates = trainable(inputs(9))
    y = build()(q, k, v, packed(9), gates=gates).y
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(y.sum(), q, create_graph=True)
