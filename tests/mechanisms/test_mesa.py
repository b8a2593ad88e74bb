"""The mesa layer: ridge regression of values on keys."""

import math

import pytest
import torch
from torch.nn import functional as F

from attnkit.attention import Mask, Shape
from attnkit.mechanisms import mesa
from attnkit.mechanisms.mesa import Mesa
from attnkit.ops import conjugate_gradients, fast_cpu


def drawn(length: int, gates: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    sizes = (4, 4, 5, gates)
    return [torch.randn(2, 3, length, size, generator=generator).double() for size in sizes]


def made(decay: str = "scalar") -> Mesa:
    mechanism = Mesa(Shape(3, 4, 99), decay=decay).double()  # type: ignore[arg-type]
    torch.nn.init.normal_(mechanism.ridge, generator=torch.Generator().manual_seed(0))
    return mechanism


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 50])
def test_it_is_the_recurrence_of_the_definition(length: int) -> None:
    q, k, v, gates = drawn(length)
    mechanism, y = made(), torch.empty_like(v)
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
                inverse = torch.linalg.inv(keys + ridge[head].diag())
                y[row, head, t] = values @ inverse @ query
    mask = Mask.packed(length, q.device, causal=True)
    torch.testing.assert_close(mechanism(q, k, v, mask, gates=gates).y, y)


@pytest.mark.parametrize("causal", [True, False])
def test_without_decay_it_fits_the_values_of_all_keys_best(causal: bool) -> None:
    """Ridge regression is least squares with one more row for each key channel."""
    q, k, v, gates = drawn(7, 1)
    mechanism = made("none")
    ridge = F.softplus(mechanism.ridge.detach()) + 0.25
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[0, 5:] = False
    y = mechanism(q, k, v, Mask.of(valid, 7, causal=causal), gates=gates).y
    for row in range(2):
        for t in range(int(valid[row].sum())):
            seen = t + 1 if causal else int(valid[row].sum())
            for head in range(3):
                root = gates[row, head, :seen].sigmoid().sqrt()
                rows = torch.cat((F.normalize(k[row, head, :seen], dim=-1) * root, ridge[head].sqrt().diag()))
                aims = F.pad(v[row, head, :seen] * root, (0, 0, 0, 4))
                fit = torch.linalg.lstsq(rows, aims).solution
                expected = F.normalize(q[row, head, t], dim=0) @ fit
                torch.testing.assert_close(y[row, head, t], expected)


@pytest.mark.parametrize("gate", [1e4, -1e4])
def test_extreme_decays_are_finite(gate: float) -> None:
    q, k, v, gates = (x.float().requires_grad_() for x in drawn(40))
    gates = torch.cat((torch.full_like(gates[..., :1], gate), gates[..., 1:]), -1)
    mask = Mask.packed(40, q.device, causal=True)
    y = made().float()(q, k, v, mask, gates=gates).y
    assert y.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), (q, k, v)))


def test_autocast_leaves_the_systems_in_32_bits() -> None:
    given = [x.float() for x in drawn(60)]
    mechanism, mask = made("none").float(), Mask.packed(60, given[0].device, causal=True)
    plain = mechanism(*given[:3], mask, gates=given[3][..., :1]).y
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(mechanism(*given[:3], mask, gates=given[3][..., :1]).y, plain)


@pytest.mark.parametrize("decay", ["scalar", "none"])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(("length", "long"), [(2, 512), (28, 512), (64, 512), (65, 512), (130, 512), (130, 40)])
def test_conjugate_gradients_agree_forward_and_backward(
    length: int, long: int, behind: bool, decay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pads, and with what the state of earlier tokens carries."""
    given = [x.requires_grad_() for x in drawn(length + 3, 1 + (decay == "scalar"))]
    mechanism, found, calls = made(decay), [], list[int]()
    taken = mesa.solution
    monkeypatch.setattr(mesa, "solution", lambda *given: calls.append(1) or taken(*given))
    monkeypatch.setattr(conjugate_gradients, "BLOCK", 3 * 64 * 64)
    monkeypatch.setattr(mesa, "LONG", long)
    valid = torch.ones(2, length + 3, dtype=torch.bool)
    valid[0, :2], valid[1, length - 1 :] = False, False
    start = 3 if behind else 0
    for plain in (True, False):
        monkeypatch.setattr(fast_cpu, "PLAIN", plain)
        state = None
        if behind:
            first = [x[:, :, :3] for x in given]
            mask = Mask.of(valid[:, :3], 3, causal=True)
            state = mechanism(*first[:3], mask, gates=first[3]).state
        later = [x[:, :, start:] for x in given]
        mask = Mask.of(valid, length + 3 - start, causal=True, start=start)
        out = mechanism(*later[:3], mask, state, gates=later[3])
        y = out.y[valid[:, None, start:].expand(-1, 3, -1)]
        leaves = [*given, mechanism.ridge]
        found.append([y, out.state, *torch.autograd.grad(y.sin().sum() + out.state.sin().sum(), leaves)])
    assert len(calls) >= 1 + behind
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)


def test_systems_that_need_many_steps_are_solved_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, gates = drawn(20)
    mechanism, mask = made(), Mask.packed(20, q.device, causal=True)
    wanted = mechanism(q, k, v, mask, gates=gates).y
    monkeypatch.setattr(conjugate_gradients, "STEPS", 1)
    exactly, calls = mesa.solve_exactly, list[int]()
    monkeypatch.setattr(mesa, "solve_exactly", lambda *given: calls.append(1) or exactly(*given))
    torch.testing.assert_close(mechanism(q, k, v, mask, gates=gates).y, wanted)
    assert calls


@pytest.mark.parametrize("length", [20, 90])
def test_gradients_that_need_many_steps_are_solved_exactly(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [x.requires_grad_() for x in drawn(length)]
    y = made()(*given[:3], Mask.packed(length, given[0].device, causal=True), gates=given[3]).y.sin().sum()
    wanted = torch.autograd.grad(y, given, retain_graph=True)
    monkeypatch.setattr(conjugate_gradients, "STEPS", 0)
    torch.testing.assert_close(torch.autograd.grad(y, given), wanted)


@pytest.mark.parametrize("size", [1e-12, 1e-25, math.inf, math.nan])
def test_gradients_of_any_size_pass_through_the_systems(size: float) -> None:
    """An overflow under fp16 or a loss that is NaN comes as such to who looks for it."""
    given = [x.float().requires_grad_() for x in drawn(28)]
    y = made().float()(*given[:3], Mask.packed(28, given[0].device, causal=True), gates=given[3]).y
    plain = torch.autograd.grad(y.sum(), given, retain_graph=True)
    found = torch.autograd.grad((y * size).sum(), given)
    for one, wanted in zip(found, plain, strict=True):
        if math.isfinite(size):
            torch.testing.assert_close(one / size, wanted, rtol=1e-3, atol=1e-4)
        else:
            assert not one.isfinite().any()


def test_the_gradient_of_conjugate_gradients_is_not_differentiated_again() -> None:
    q, k, v, gates = drawn(9)
    q.requires_grad_()
    y = made()(q, k, v, Mask.packed(9, q.device, causal=True), gates=gates).y
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(y.sum(), q, create_graph=True)
