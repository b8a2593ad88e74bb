"""The gated delta rule: chunks, blocks and single steps are one recurrence."""

from typing import Literal, TypeAlias

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask, Shape
from attnkit.layers import MultiHead
from attnkit.mechanisms import gated_delta
from attnkit.mechanisms.gated_delta import GatedDelta, chunked, undecayed

Decay: TypeAlias = Literal["scalar", "channel", "none"]


def formula(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, erase: Tensor, write: Tensor, state: Tensor) -> Tensor:
    """S_t = (I - k (b * k)^T) Diag(a_t) S + w k v^T, as the papers with gates a channel write it.

    With one number for a, and one for b and w, that is the transpose of the first paper's
    S_t = a_t S (I - b_t k k^T) + b_t v k^T.
    """
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    answers, eye = [], torch.eye(k.shape[-1], dtype=k.dtype)
    for t in range(k.shape[2]):
        key, value = k[:, :, t, :, None], v[:, :, t, :, None]
        a, b, w = (x[:, :, t, :, None] for x in (decay.exp(), erase, write))
        kept = eye - key @ (b * key).transpose(-1, -2)
        state = kept @ (a * state) + w * key @ value.transpose(-1, -2)
        answers.append((state.transpose(-1, -2) @ q[:, :, t, :, None]).squeeze(-1))
    return torch.stack(answers, 2)


def recurrence(length: int, decays: int, erases: int, rate: float = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = [(2, 3, length, 5), (2, 3, length, 5), (2, 3, length, 4)]
    q, k, v = (torch.randn(shape, generator=generator).double() for shape in shapes)
    decay = -torch.rand(2, 3, length, decays, generator=generator).double() * rate
    erase = torch.rand(2, 3, length, erases, generator=generator).double()
    write = torch.rand(2, 3, length, 1, generator=generator).double()
    state = torch.randn(2, 3, 5, 4, generator=generator).double()
    return [x.requires_grad_() for x in (q, k, v, decay, erase, write, state)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("rate", [0.05, 2.0, 100.0])
@pytest.mark.parametrize(("decays", "erases"), [(1, 1), (5, 1), (1, 5), (5, 5)])
@pytest.mark.parametrize(("length", "size"), [(1, 32), (2, 32), (32, 32), (33, 32), (150, 32), (65, 64), (150, 64)])
def test_chunks_are_the_formula_forward_and_backward(
    length: int, size: int, decays: int, erases: int, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gated_delta, "CHUNKS", {"cpu": size})
    given = recurrence(length, decays, erases, rate)
    y, _ = chunked(*given)
    wanted = formula(*given)
    torch.testing.assert_close(y, wanted)
    found = torch.autograd.grad(y.square().sum(), given)
    right = torch.autograd.grad(wanted.square().sum(), given)
    torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("length", [2, 32, 33, 66, 150])
def test_without_decay_chunks_are_those_of_a_decay_of_one(length: int) -> None:
    q, k, v, decay, *given = recurrence(length, 1, 5, rate=0)
    found = []
    for y, end in (chunked(q, k, v, decay, *given), undecayed(q, k, v, *given)):
        gradients = torch.autograd.grad(y.sin().sum() + end.sin().sum(), [q, k, v, *given])
        found.append([y, end, *gradients])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("length", [2, 17, 32])
def test_the_first_chunk_needs_no_state(length: int) -> None:
    *given, state = recurrence(length, 5, 5)
    found = []
    for first in (None, torch.zeros_like(state)):
        y, end = chunked(*given, first)
        gradients = torch.autograd.grad(y.square().sum() + end.square().sum(), given)
        found.append([y, end, *gradients])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("decay", ["none", "scalar", "channel"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_steps_are_applied_one_after_the_other_to_a_token(steps: int, decay: Decay) -> None:
    torch.manual_seed(0)
    made = GatedDelta(Shape(3, 5, 99), decay=decay, strength=2.0, steps=steps).double()
    q = torch.randn(2, 3, 40, 5).double()
    k, v = torch.randn(2, 2, 3 * steps, 40, 5).double()
    gates = torch.randn(2, 3, 40, made.gates).double()
    y = made(q, k, v, Mask.packed(40, q.device, causal=True), gates=gates).y
    state, answers = torch.zeros(2, 3, 5, 5).double(), []
    for t in range(40):
        if decay != "none":
            fade = F.softplus(gates[:, :, t, : made.decays] + made.step_bias.view(3, -1))
            state = state * (-made.log_rate.exp()[:, None] * fade).exp()[..., None]
        for step in range(steps):
            key, value = (x[:, 3 * step : 3 * step + 3, t] for x in (k, v))
            key = F.normalize(key, dim=-1)[..., None]  # [B, H, D, 1]
            share = 2 * gates[:, :, t, made.decays + step].sigmoid()[..., None, None]
            state = state + share * key * (value[..., None, :] - (key * state).sum(2, keepdim=True))
        answers.append((F.normalize(q[:, :, t], dim=-1)[..., None] * state).sum(2))
    torch.testing.assert_close(y, torch.stack(answers, 2))


def layer_and_input(length: int, decay: Decay = "scalar") -> tuple[MultiHead, Tensor]:
    torch.manual_seed(2)
    layer = MultiHead.build("gated-delta", 12, 3, 300, decay=decay).double()
    return layer, torch.randn(2, length, 12).double()


@pytest.mark.parametrize("decay", ["none", "scalar"])
def test_blocks_of_training_are_one_pass(decay: Decay, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_and_input(150, decay)
    mask, found = Mask.packed(150, x.device, causal=True), []
    for block in (64, 10**9):
        monkeypatch.setattr(gated_delta, "BLOCK", block)
        layer.zero_grad()
        out = layer(x, mask)
        (out.y.square().sum() + out.state.square().sum()).backward()
        found.append([out.y, out.state, *(p.grad.clone() for p in layer.parameters())])
    torch.testing.assert_close(*found)


def test_it_reads_from_left_to_right_even_without_a_causal_mask() -> None:
    layer, x = layer_and_input(20)
    both = [layer(x, Mask.packed(20, x.device, causal=causal)).y for causal in (True, False)]
    torch.testing.assert_close(*both)


def test_the_decay_starts_in_the_range_of_the_paper() -> None:
    torch.manual_seed(0)
    made = GatedDelta(Shape(2000, 2, 8))
    assert 1 <= made.log_rate.exp().min() < 1.2
    assert 15.8 < made.log_rate.exp().max() <= 16
    steps = F.softplus(made.step_bias)
    assert 0.00099 < steps.min() < 0.0012
    assert 0.09 < steps.max() < 0.1001


@pytest.mark.parametrize("option", ["decay", "erase"])
def test_gates_a_channel_that_are_equal_are_the_gates_of_a_head(option: str) -> None:
    torch.manual_seed(0)
    scalar, wide = GatedDelta(Shape(2, 4, 99)), GatedDelta(Shape(2, 4, 99), **{option: "channel"})
    with torch.no_grad():
        wide.log_rate.copy_(scalar.log_rate)
        wide.step_bias.copy_(scalar.step_bias[:, None] if option == "decay" else scalar.step_bias)
    q, k, v = (torch.randn(2, 2, 90, 4) for _ in "qkv")
    decay, step = (torch.randn(2, 2, 90, 1) for _ in range(2))
    parts = [decay.expand(-1, -1, -1, 4), step] if option == "decay" else [decay, step, step]
    if option == "erase":
        parts[1] = step.expand(-1, -1, -1, 4)
    mask = Mask.packed(90, q.device, causal=True)
    found = wide(q, k, v, mask, gates=torch.cat(parts, -1)).y
    torch.testing.assert_close(found, scalar(q, k, v, mask, gates=torch.cat((decay, step), -1)).y)
