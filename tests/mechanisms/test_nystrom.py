"""Nystrom attention: landmarks of real tokens, the inverse, short rows, the convolution."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.mechanisms import nystrom
from attnkit.mechanisms.nystrom import Nystrom, Segments, neighbours

HEADS, WIDTH = 2, 4


def made(**options: Any) -> Nystrom:
    torch.manual_seed(1)
    mechanism = MultiHead.build("nystrom", HEADS * WIDTH, HEADS, 300, **options).mechanism.double()
    assert isinstance(mechanism, Nystrom)
    return mechanism


def inputs(rows: int, length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shape = (rows, HEADS, length, WIDTH)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]


def whole(rows: int, length: int) -> Mask:
    return Mask.of(torch.ones(rows, length, dtype=torch.bool), length, causal=False)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) / WIDTH**0.5).softmax(-1) @ v


def plainly(q: Tensor, k: Tensor, v: Tensor, landmarks: int) -> Tensor:
    """The method for one head of one sentence without pads, as the equations say it."""
    length = q.shape[0]
    segment = torch.arange(length) * landmarks // length
    q_marks, k_marks = (torch.stack([x[segment == number].mean(0) for number in range(landmarks)]) for x in (q, k))
    first, middle, last = (
        (a @ b.T / WIDTH**0.5).softmax(-1) for a, b in ((q, k_marks), (q_marks, k_marks), (q_marks, k))
    )
    return first @ torch.linalg.pinv(middle) @ (last @ v)


@pytest.mark.parametrize(("length", "landmarks"), [(9, 3), (10, 3), (50, 4), (23, 5), (40, 8)])
def test_the_answer_is_that_of_the_equations(length: int, landmarks: int) -> None:
    q, k, v = inputs(2, length)
    y = made(landmarks=landmarks, pinv="exact")(q, k, v, whole(2, length)).y
    for row in range(2):
        for head in range(HEADS):
            one = plainly(q[row, head], k[row, head], v[row, head], landmarks)
            torch.testing.assert_close(y[row, head], one, rtol=1e-7, atol=1e-7)


def test_the_iteration_takes_the_residuals_of_its_source() -> None:
    kernel = torch.tensor([[0.7, 0.3], [0.4, 0.6]], dtype=torch.float64)
    inverse = nystrom.start(kernel)
    for expected in (0.527, 0.405, 0.220, 0.0322, 9.0e-5, 1.9e-12):
        residual = (torch.eye(2) - kernel @ inverse).abs().max().item()
        assert residual == pytest.approx(expected, rel=0.03)
        inverse = nystrom.step(kernel, inverse)
    limit = torch.tensor([[2, -1], [-4 / 3, 7 / 3]], dtype=torch.float64)
    torch.testing.assert_close(nystrom.newton(kernel), limit)


@pytest.mark.parametrize("pinv", ["iterative", "exact", "none"])
def test_rows_with_no_more_tokens_than_landmarks_are_exact_in_any_batch(pinv: str) -> None:
    mechanism = made(landmarks=6, pinv=pinv)
    q, k, v = inputs(4, 20)
    valid = torch.zeros(4, 20, dtype=torch.bool)
    valid[0] = True
    valid[1, :6] = True  # as many tokens as landmarks
    valid[2, 15:] = True  # fewer, behind pads
    valid[3, 4:6] = valid[3, 10:11] = True  # with a hole
    y = mechanism(q, k, v, Mask.of(valid, 20, causal=False)).y
    for row in (1, 2, 3):
        real = valid[row]
        parts = (x[row : row + 1, :, real] for x in (q, k, v))
        torch.testing.assert_close(y[row : row + 1, :, real], softmax_attention(*parts))
    alone = mechanism(q[:1], k[:1], v[:1], whole(1, 20)).y
    torch.testing.assert_close(y[:1], alone)


def test_segments_are_of_real_tokens() -> None:
    valid = torch.ones(1, 9, dtype=torch.bool)
    valid[0, 0] = valid[0, 4] = False
    segments = Segments.of(Mask.of(valid, 9, causal=False), 3)
    assert segments.member is not None
    assert segments.member[0].int().tolist() == [
        [0, 1, 1, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 1, 1],
    ]


def test_the_fused_kernel_equals_the_plain_products(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    valid = torch.arange(90) < torch.tensor([[90], [50], [4], [0]])
    for limit in (0, 10**9):
        monkeypatch.setattr(nystrom, "PLAIN_UP_TO", limit)
        parts = [x.requires_grad_() for x in inputs(4, 90)]
        y = made(landmarks=6)(*parts, Mask.of(valid, 90, causal=False)).y
        found.append((y, *torch.autograd.grad(y.square().sum(), parts)))
    torch.testing.assert_close(*found)


def test_without_an_inverse_there_are_two_softmaxes() -> None:
    q, k, v = inputs(1, 12)
    q_marks, k_marks = (x.unflatten(2, (3, 4)).mean(3) for x in (q, k))
    expected = softmax_attention(q, k_marks, softmax_attention(q_marks, k, v))
    y = made(landmarks=3, pinv="none")(q, k, v, whole(1, 12)).y
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("length", [1, 4, 5, 6, 40])
def test_the_convolution_is_the_plain_one(length: int) -> None:
    values = torch.randn(2, length, HEADS, 3, dtype=torch.float64).transpose(1, 2)
    weights = torch.randn(HEADS, 1, 5, 1, dtype=torch.float64)
    found = []
    for convolve in (neighbours, partial(F.conv2d, padding=(2, 0), groups=HEADS)):
        given = [values.detach().requires_grad_(), weights.detach().requires_grad_()]
        y = convolve(*given)
        found.append((y, *torch.autograd.grad(y.cos().sum(), given)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("length", [1, 11, 12, 16])
def test_a_kernel_longer_than_the_text_has_the_gradient_of_float64(length: int) -> None:
    """With one head the gradient of oneDNN's convolution wrote out of bounds."""
    values = torch.randn(3, 1, length, 4, dtype=torch.float64)
    weights = torch.randn(1, 1, 33, 1, dtype=torch.float64)
    found = []
    for kind in (torch.float32, torch.float64):
        given = [one.to(kind).requires_grad_() for one in (values, weights)]
        y = neighbours(*given)
        found.append([part.double() for part in (y, *torch.autograd.grad(y.cos().sum(), given))])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_the_convolution_goes_over_real_positions() -> None:
    mechanism, (q, k, v) = made(landmarks=2, conv=3), inputs(1, 9)
    valid = torch.ones(1, 9, dtype=torch.bool)
    valid[0, 0] = valid[0, 4:6] = False
    mask = Mask.of(valid, 9, causal=False)
    with_it = mechanism.weights(q, k, v, mask)[:, :, valid[0]][..., valid[0]]
    assert mechanism.filter is not None
    taps = mechanism.filter[:, 0, :, 0]
    mechanism.filter = None
    added = with_it - mechanism.weights(q, k, v, mask)[:, :, valid[0]][..., valid[0]]
    for head in range(HEADS):
        expected = sum(torch.diag(taps[head, 1 + shift].expand(6 - abs(shift)), shift) for shift in (-1, 0, 1))
        torch.testing.assert_close(added[0, head], expected)


def test_no_square_is_formed() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(1, 4096))
    with torch.profiler.profile(profile_memory=True) as seen:
        y = made(landmarks=8)(q, k, v, whole(1, 4096)).y
        torch.autograd.grad(y.sum(), (q, k, v))
    largest = max(event.self_cpu_memory_usage for event in seen.events() or [])
    assert 0 < largest < 4096 * 4096
