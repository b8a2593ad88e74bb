"""Tests of Nystrom attention: landmarks, the inverse, short rows, padding, the convolution, memory."""

from functools import partial
from typing import Any

import pytest
import torch
from helpers.tensors import assert_same_for_each, packed, sequences, trainable, valid_tokens, with_gradients
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.mechanisms import nystrom
from attnkit.mechanisms.nystrom import Segments, neighbors

HEADS, WIDTH = 2, 4


def build(**options: Any) -> Any:
    torch.manual_seed(1)
    return MultiHead.build("nystrom", HEADS * WIDTH, HEADS, 300, **options).mechanism.double()


def inputs(rows: int, length: int) -> list[Tensor]:
    return sequences(length, WIDTH, WIDTH, WIDTH, rows=rows, heads=HEADS)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) / WIDTH**0.5).softmax(-1) @ v


def formula(q: Tensor, k: Tensor, v: Tensor, landmarks: int) -> Tensor:
    """Return the output for one head of one row without padding, as the equations define it."""
    segment = torch.arange(q.shape[0]) * landmarks // q.shape[0]
    q_marks, k_marks = (torch.stack([x[segment == number].mean(0) for number in range(landmarks)]) for x in (q, k))
    first, middle, last = (
        (a @ b.T / WIDTH**0.5).softmax(-1) for a, b in ((q, k_marks), (q_marks, k_marks), (q_marks, k))
    )
    return first @ torch.linalg.pinv(middle) @ (last @ v)


@pytest.mark.parametrize(("length", "landmarks"), [(9, 3), (10, 3), (50, 4), (23, 5), (40, 8)])
def test_outputs_equal_the_equations(length: int, landmarks: int) -> None:
    qkv = inputs(2, length)
    y = build(landmarks=landmarks, pinv="exact")(*qkv, packed(length, causal=False)).y
    for row in range(2):
        for head in range(HEADS):
            expected = formula(*(x[row, head] for x in qkv), landmarks)
            torch.testing.assert_close(y[row, head], expected, rtol=1e-7, atol=1e-7)


def test_iteration_has_the_residuals_of_the_source() -> None:
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
    mechanism, qkv = build(landmarks=6, pinv=pinv), inputs(4, 20)
    # no padding; as many tokens as landmarks; fewer, after padding; fewer, with a hole
    valid = valid_tokens(20, slice(0), slice(6, None), slice(15), slice(None))
    valid[3, 4:6] = valid[3, 10:11] = True
    y = mechanism(*qkv, Mask.of(valid, 20, causal=False)).y
    for row in (1, 2, 3):
        real = valid[row]
        expected = softmax_attention(*(x[row : row + 1, :, real] for x in qkv))
        torch.testing.assert_close(y[row : row + 1, :, real], expected)
    alone = mechanism(*(x[:1] for x in qkv), packed(20, causal=False)).y
    torch.testing.assert_close(y[:1], alone)


def test_segments_do_not_count_padding() -> None:
    valid = valid_tokens(9, slice(0, 5, 4))
    segments: Any = Segments.of(Mask.of(valid, 9, causal=False), 3)
    assert segments.member[0].int().tolist() == [
        [0, 1, 1, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 1, 1],
    ]


def test_fused_kernel_equals_plain_products(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = Mask.of(torch.arange(90) < torch.tensor([[90], [50], [4], [0]]), 90, causal=False)
    mechanism, qkv = build(landmarks=6), trainable(inputs(4, 90))
    assert_same_for_each(
        monkeypatch, nystrom, "PLAIN_UP_TO", (0, 10**9), lambda: with_gradients(mechanism(*qkv, mask).y, qkv)
    )


def test_without_an_inverse_there_are_two_softmaxes() -> None:
    q, k, v = inputs(1, 12)
    q_marks, k_marks = (x.unflatten(2, (3, 4)).mean(3) for x in (q, k))
    expected = softmax_attention(q, k_marks, softmax_attention(q_marks, k, v))
    y = build(landmarks=3, pinv="none")(q, k, v, packed(12, causal=False)).y
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("length", [1, 4, 5, 6, 40])
def test_convolution_equals_that_of_torch(length: int) -> None:
    values = torch.randn(2, length, HEADS, 3, dtype=torch.float64).transpose(1, 2)
    tensors = trainable([values, torch.randn(HEADS, 1, 5, 1, dtype=torch.float64)])
    convolve = partial(F.conv2d, padding=(2, 0), groups=HEADS)
    expected = with_gradients(convolve(*tensors), tensors)
    torch.testing.assert_close(with_gradients(neighbors(*tensors), tensors), expected)


@pytest.mark.parametrize("length", [1, 11, 12, 16])
def test_gradient_of_a_convolution_kernel_longer_than_the_sequence(length: int) -> None:
    """With one head the gradient of oneDNN's convolution was written out of bounds."""
    exact = [torch.randn(*shape, dtype=torch.float64) for shape in ((3, 1, length, 4), (1, 1, 33, 1))]
    single, double = (trainable(x.to(dtype) for x in exact) for dtype in (torch.float32, torch.float64))
    found = [x.double() for x in with_gradients(neighbors(*single), single)]
    expected = with_gradients(neighbors(*double), double)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_convolution_skips_padding() -> None:
    mechanism, qkv = build(landmarks=2, conv=3), inputs(1, 9)
    valid = valid_tokens(9, slice(4, 6))
    valid[0, 0] = False
    mask, taps = Mask.of(valid, 9, causal=False), mechanism.filter[:, 0, :, 0]
    with_convolution = mechanism.weights(*qkv, mask)
    mechanism.filter = None
    added = (with_convolution - mechanism.weights(*qkv, mask))[:, :, valid[0]][..., valid[0]]
    for head in range(HEADS):
        expected = sum(torch.diag(taps[head, 1 + shift].expand(6 - abs(shift)), shift) for shift in (-1, 0, 1))
        torch.testing.assert_close(added[0, head], expected)


def test_no_tensor_is_quadratic_in_the_length() -> None:
    qkv = trainable(inputs(1, 4096))
    with torch.profiler.profile(profile_memory=True) as profile:
        with_gradients(build(landmarks=8)(*qkv, packed(4096, causal=False)).y, qkv)
    assert 0 < max(event.self_cpu_memory_usage for event in profile.events() or []) < 4096 * 4096
