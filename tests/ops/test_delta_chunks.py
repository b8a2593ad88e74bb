"""Tests of the gated delta rule with hand-written gradients against plain operations."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from helpers.tensors import assert_same_for_each, sequences, trainable, valid_tokens, with_gradients

from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.mechanisms.gated_delta import chunked
from attnkit.ops import delta_chunks, fast_cpu

TOLERANCE = {"rtol": 1e-9, "atol": 1e-11}


def inputs(length: int, decays: int, erases: int, state: bool) -> list[Any]:
    """Return q, k, v, log decays or None, the gates of erasing and writing, and a state or None."""
    q, k, v, decay, *gates = trainable(sequences(length, 5, 5, 4, decays, erases, 1))
    log_decay = trainable([-3 * decay.abs()])[0] if decays else None
    gates = trainable(gate.sigmoid() for gate in gates)
    return [q, k, v, log_decay, *gates, *(trainable(sequences(5, 4)) if state else [None])]


@pytest.mark.parametrize("read", ["answers", "state", "both"])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize(("decays", "erases"), [(0, 1), (1, 1), (1, 5)])
@pytest.mark.parametrize("length", [1, 2, 28, 33, 96])
def test_fast_form_equals_plain_operations(
    length: int, decays: int, erases: int, state: bool, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = inputs(length, decays, erases, state)
    leaves = [x for x in tensors if x is not None]

    def compute() -> list[torch.Tensor]:
        y, end = chunked(*tensors)
        total = y.sin().sum() * (read != "state") + end.sin().sum() * (read != "answers")
        return [y, end, *torch.autograd.grad(total, leaves)]

    assert_same_for_each(monkeypatch, fast_cpu, "PLAIN", (True, False), compute, **TOLERANCE)


def test_keys_of_length_zero_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, decay, erase, write, _ = inputs(40, 1, 1, False)
    for tensor, positions in ((q, slice(7, 8)), (k, slice(3, 5)), (erase, slice(3, 5)), (write, slice(3, 5))):
        tensor.data[:, :, positions] = 0
    assert_same_for_each(
        monkeypatch,
        fast_cpu,
        "PLAIN",
        (True, False),
        lambda: with_gradients(chunked(q, k, v, decay, erase, write, None)[0], [k, v, decay, erase, write])[1:],
        **TOLERANCE,
    )


@pytest.mark.parametrize("pads", [slice(9), slice(60, None), slice(0)], ids=["left", "right", "none"])
def test_layer_uses_the_fast_form_and_equals_plain_operations(pads: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, x = MultiHead.build("gated-delta", 12, 3, 99).double(), torch.randn(2, 70, 12).double()
    valid = valid_tokens(70, slice(0), pads)
    monkeypatch.setattr(delta_chunks._DeltaChunks, "apply", apply := Mock(wraps=delta_chunks._DeltaChunks.apply))

    def compute() -> list[torch.Tensor]:
        output = layer(x, Mask.of(valid, 70, True))
        return with_gradients([output.y[valid], output.state], [*layer.parameters()])

    assert_same_for_each(monkeypatch, fast_cpu, "PLAIN", (True, False), compute, **TOLERANCE)
    apply.assert_called_once()


def test_autocast_uses_plain_operations_and_second_derivatives_raise() -> None:
    tensors = [x.detach().float() for x in inputs(40, 1, 1, True)]
    tensors[0].requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = chunked(*tensors)
    assert "DeltaChunks" not in str(y.grad_fn)
    y, _ = chunked(*tensors)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(y.sum(), tensors[0], create_graph=True)
