"""The gated delta rule by hand-written gradients and by plain operations."""

import pytest
import torch
from torch import Tensor

from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.mechanisms.gated_delta import chunked
from attnkit.ops import delta_chunks, fast_cpu


def sequences(length: int, decays: int, erases: int, state: bool) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(length)
    sizes = [5, 5, 4, decays, erases, 1]
    q, k, v, decay, *gates = (torch.randn(2, 3, length, size, generator=generator).double() for size in sizes)
    start = torch.randn(2, 3, 5, 4, generator=generator).double() if state else None
    log_decay = -3 * decay.abs() if decays else None
    given = [q, k, v, log_decay, *(gate.sigmoid() for gate in gates), start]
    return [None if x is None else x.requires_grad_() for x in given]


@pytest.mark.parametrize("read", ["answers", "state", "both"])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize(("decays", "erases"), [(0, 1), (1, 1), (1, 5)])
@pytest.mark.parametrize("length", [1, 2, 28, 33, 96])
def test_they_agree_forward_and_backward(
    length: int, decays: int, erases: int, state: bool, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = sequences(length, decays, erases, state)
    leaves, found = [x for x in given if x is not None], []
    for plain in (True, False):
        monkeypatch.setattr(fast_cpu, "PLAIN", plain)
        y, end = chunked(*given)
        total = y.sin().sum() * (read != "state") + end.sin().sum() * (read != "answers")
        found.append([y, end, *torch.autograd.grad(total, leaves)])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


def test_keys_of_length_zero_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, decay, erase, write, _ = sequences(40, 1, 1, False)
    found = []
    for plain in (True, False):
        monkeypatch.setattr(fast_cpu, "PLAIN", plain)
        with torch.no_grad():
            k[:, :, 3:5], q[:, :, 7] = 0, 0
            erase[:, :, 3:5], write[:, :, 3:5] = 0, 0
        y, _ = chunked(q, k, v, decay, erase, write, None)
        found.append(torch.autograd.grad(y.sin().sum(), [k, v, decay, erase, write]))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("side", ["left", "right", "packed"])
def test_a_layer_takes_it_and_gives_what_plain_operations_give(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, x = MultiHead.build("gated-delta", 12, 3, 99).double(), torch.randn(2, 70, 12).double()
    valid = torch.ones(2, 70, dtype=torch.bool)
    valid[1, {"left": slice(9), "right": slice(60, None), "packed": slice(0)}[side]] = False
    calls, taken, found = list[int](), delta_chunks._DeltaChunks.apply, []
    monkeypatch.setattr(delta_chunks._DeltaChunks, "apply", lambda *given: calls.append(1) or taken(*given))
    for plain in (True, False):
        monkeypatch.setattr(fast_cpu, "PLAIN", plain)
        layer.zero_grad()
        out = layer(x, Mask.of(valid, 70, True))
        (out.y[valid].sin().sum() + out.state.sin().sum()).backward()
        found.append([out.y[valid], *(p.grad.clone() for p in layer.parameters())])
    assert calls == [1]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


def test_autocast_and_second_derivatives_are_left_to_plain_operations() -> None:
    given = [None if x is None else x.float().detach() for x in sequences(40, 1, 1, True)]
    given[0].requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = chunked(*given)
    assert "DeltaChunks" not in str(y.grad_fn)
    y, _ = chunked(*given)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(y.sum(), given[0], create_graph=True)
