"""Tests of the gated delta rule: chunks, blocks and single steps compute the same recurrence."""

from typing import Literal, TypeAlias

import pytest
import torch
from helpers.tensors import assert_same_for_each, packed, sequences, trainable, with_gradients
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Shape
from attnkit.layers import MultiHead
from attnkit.mechanisms import gated_delta
from attnkit.mechanisms.gated_delta import GatedDelta, chunked, undecayed

Decay: TypeAlias = Literal["scalar", "channel", "none"]


def formula(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, erase: Tensor, write: Tensor, state: Tensor) -> Tensor:
    """Compute S_t = (I - k (b * k)^T) Diag(a_t) S + w k v^T, as the papers with a gate per channel write it.

    With one number for a, and one for b and w, that is the transpose of the first paper's
    S_t = a_t S (I - b_t k k^T) + b_t v k^T.
    """
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    outputs, eye = [], torch.eye(k.shape[-1], dtype=k.dtype)
    for t in range(k.shape[2]):
        key, value = k[:, :, t, :, None], v[:, :, t, :, None]
        a, b, w = (x[:, :, t, :, None] for x in (decay.exp(), erase, write))
        state = (eye - key @ (b * key).transpose(-1, -2)) @ (a * state) + w * key @ value.transpose(-1, -2)
        outputs.append((state.transpose(-1, -2) @ q[:, :, t, :, None]).squeeze(-1))
    return torch.stack(outputs, 2)


def recurrence(length: int, decays: int, erases: int, rate: float = 2) -> list[Tensor]:
    """Return q, k, v, the logarithms of decays, gates of erasing and writing, and a state."""
    q, k, v, decay, erase, write = sequences(length, 5, 5, 4, decays, erases, 1)
    state = sequences(5, 4)[0]
    return trainable([q, k, v, -decay.sigmoid() * rate, erase.sigmoid(), write.sigmoid(), state])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("rate", [0.05, 2.0, 100.0])
@pytest.mark.parametrize(("decays", "erases"), [(1, 1), (5, 1), (1, 5), (5, 5)])
@pytest.mark.parametrize(("length", "size"), [(1, 32), (2, 32), (32, 32), (33, 32), (150, 32), (65, 64), (150, 64)])
def test_chunks_equal_the_formula_forward_and_backward(
    length: int, size: int, decays: int, erases: int, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gated_delta, "CHUNKS", {"cpu": size})
    inputs = recurrence(length, decays, erases, rate)
    y, *gradients = with_gradients(chunked(*inputs)[0], inputs)
    expected, *expected_gradients = with_gradients(formula(*inputs), inputs)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("length", [2, 32, 33, 66, 150])
def test_chunks_without_decay_equal_a_decay_of_one(length: int) -> None:
    q, k, v, decay, *rest = recurrence(length, 1, 5, rate=0)
    inputs = [q, k, v, *rest]
    expected = with_gradients(chunked(q, k, v, decay, *rest), inputs)
    torch.testing.assert_close(with_gradients(undecayed(*inputs), inputs), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("length", [2, 17, 32])
def test_first_chunk_without_a_state_equals_a_state_of_zeros(length: int) -> None:
    *inputs, state = recurrence(length, 5, 5)
    expected = with_gradients(chunked(*inputs, torch.zeros_like(state)), inputs)
    torch.testing.assert_close(with_gradients(chunked(*inputs, None), inputs), expected)


@pytest.mark.parametrize("decay", ["none", "scalar", "channel"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_steps_of_a_token_are_applied_in_order(steps: int, decay: Decay) -> None:
    torch.manual_seed(0)
    mechanism = GatedDelta(Shape(3, 5, 99), decay=decay, strength=2.0, steps=steps).double()
    q = torch.randn(2, 3, 40, 5).double()
    k, v = torch.randn(2, 2, 3 * steps, 40, 5).double()
    gates = torch.randn(2, 3, 40, mechanism.gates).double()
    state, outputs = torch.zeros(2, 3, 5, 5).double(), []
    for t in range(40):
        if decay != "none":
            fade = F.softplus(gates[:, :, t, : mechanism.decays] + mechanism.step_bias.view(3, -1))
            state = state * (-mechanism.log_rate.exp()[:, None] * fade).exp()[..., None]
        for step in range(steps):
            key, value = (x[:, 3 * step : 3 * step + 3, t] for x in (k, v))
            key = F.normalize(key, dim=-1)[..., None]  # [B, H, D, 1]
            share = 2 * gates[:, :, t, mechanism.decays + step].sigmoid()[..., None, None]
            state = state + share * key * (value[..., None, :] - (key * state).sum(2, keepdim=True))
        outputs.append((F.normalize(q[:, :, t], dim=-1)[..., None] * state).sum(2))
    torch.testing.assert_close(mechanism(q, k, v, packed(40), gates=gates).y, torch.stack(outputs, 2))


def layer_and_input(length: int, decay: Decay = "scalar") -> tuple[MultiHead, Tensor]:
    torch.manual_seed(2)
    layer = MultiHead.build("gated-delta", 12, 3, 300, decay=decay).double()
    return layer, torch.randn(2, length, 12).double()


@pytest.mark.parametrize("decay", ["none", "scalar"])
def test_training_in_blocks_equals_one_pass(decay: Decay, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_and_input(150, decay)

    def compute() -> list[Tensor]:
        output = layer(x, packed(150))
        return with_gradients([output.y, output.state], [*layer.parameters()])

    assert_same_for_each(monkeypatch, gated_delta, "BLOCK", (64, 10**9), compute)


def test_tokens_are_read_from_left_to_right_without_a_causal_mask() -> None:
    layer, x = layer_and_input(20)
    torch.testing.assert_close(layer(x, packed(20, causal=False)).y, layer(x, packed(20)).y)


def test_initial_decay_is_in_the_range_of_the_paper() -> None:
    torch.manual_seed(0)
    mechanism = GatedDelta(Shape(2000, 2, 8))
    assert 1 <= mechanism.log_rate.exp().min() < 1.2
    assert 15.8 < mechanism.log_rate.exp().max() <= 16
    steps = F.softplus(mechanism.step_bias)
    assert 0.00099 < steps.min() < 0.0012
    assert 0.09 < steps.max() < 0.1001


@pytest.mark.parametrize("option", ["decay", "erase"])
def test_equal_gates_of_channels_are_the_gate_of_a_head(option: str) -> None:
    torch.manual_seed(0)
    scalar, wide = GatedDelta(Shape(2, 4, 99)), GatedDelta(Shape(2, 4, 99), **{option: "channel"})
    with torch.no_grad():
        wide.log_rate.copy_(scalar.log_rate)
        wide.step_bias.copy_(scalar.step_bias[:, None] if option == "decay" else scalar.step_bias)
    q, k, v, decay, step = (x.float() for x in sequences(90, 4, 4, 4, 1, 1, heads=2))
    channels = step.expand(-1, -1, -1, 4)
    gates = (decay.expand(-1, -1, -1, 4), step) if option == "decay" else (decay, channels, step)
    expected = scalar(q, k, v, packed(90), gates=torch.cat((decay, step), -1)).y
    torch.testing.assert_close(wide(q, k, v, packed(90), gates=torch.cat(gates, -1)).y, expected)
