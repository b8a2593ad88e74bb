"""Tests of the sums of kernel attention against the formula, with and without shifts of exponents."""

import pytest
import torch
from helpers.kernel_reference import attend, similarities
from helpers.tensors import assert_same_for_each, packed, sequences, trainable, valid_tokens, with_gradients
from torch import Tensor

from attnkit.attention import Kernel, Mask
from attnkit.layers import MultiHead
from attnkit.ops import fast_cpu

CASES = [
    ("linear", {"feature_map": "elu"}, "elu"),
    ("linear", {"feature_map": "taylor"}, "taylor"),
    ("linear", {"feature_map": "exp"}, "exp"),
    ("linear", {"feature_map": "softmax"}, "softmax"),
    ("performer", {"features": 12}, "softmax kernel"),
    ("performer", {"features": 12, "kernel": "hyperbolic"}, "hyperbolic"),
    ("performer", {"features": 12, "kernel": "relu"}, "relu"),
]
HEADS, WIDTH = 2, 4


@pytest.fixture(params=[True, False])
def plain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with plain operations and with fast forms."""
    monkeypatch.setattr(fast_cpu, "PLAIN", request.param)


def build(word: str, **options: object) -> Kernel:
    torch.manual_seed(3)
    mechanism = MultiHead.build(word, HEADS * WIDTH, HEADS, 600, **options).mechanism
    assert isinstance(mechanism, Kernel)
    return mechanism.double().eval()


def inputs(length: int) -> list[Tensor]:
    return sequences(length, WIDTH, WIDTH, WIDTH, rows=3, heads=HEADS)


def padded(length: int) -> Tensor:
    """Return the valid tokens of three rows, with padding on no side, left and right."""
    return valid_tokens(length, slice(0), slice(2), slice(length - length // 3, None))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("word", "options", "name"), CASES)
@pytest.mark.usefixtures("plain")
def test_outputs_and_gradients_equal_the_formula(
    word: str, options: dict[str, object], name: str, causal: bool
) -> None:
    mechanism = build(word, **options)
    projection = getattr(mechanism, "projection", None)
    for length in (1, 2, 33, 70):
        valid, qkv = padded(length), trainable(inputs(length))
        y = mechanism(*qkv, Mask.of(valid, length, causal=causal)).y
        expected = attend(similarities(name, *qkv[:2], projection), qkv[2], valid, causal=causal)
        real = valid[:, None, :, None]
        torch.testing.assert_close(
            with_gradients(y * real, qkv), with_gradients(expected * real, qkv), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize(("word", "options", "name"), CASES)
def test_pairs_of_short_texts_equal_sums(word: str, options: dict[str, object], name: str) -> None:
    mechanism = build(word, **options)
    for length in (3, 9, 40):
        results, qkv = [], trainable(inputs(length))
        for chunk in (80, 1):  # the second leaves no room for pairs
            mechanism.chunk = chunk
            output = mechanism(*qkv, Mask.of(padded(length), length, causal=True))
            sums, peak = output.state
            sums = sums if peak is None else sums * peak.exp().unsqueeze(-1)
            y, _, *gradients = with_gradients([output.y, sums], qkv)
            results.append([y, *gradients])
        torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [1, 40, 400])
@pytest.mark.usefixtures("plain")
def test_rising_exponents_neither_overflow_nor_vanish(scale: float) -> None:
    """With one shift for the whole sequence the first keys were 0 in float32, and so were the outputs."""
    mechanism, mask = build("linear", feature_map="exp"), packed(100)
    q, k, v = inputs(100)
    k = k + torch.linspace(-scale, scale, 100, dtype=torch.float64)[:, None]
    expected = attend(similarities("exp", q, k), v, torch.ones(3, 100, dtype=torch.bool), causal=True)
    torch.testing.assert_close(mechanism(q, k, v, mask).y, expected, rtol=1e-9, atol=1e-9)
    q, k, v = q.float(), k.float(), v.float()
    # |k| of 400 has an ulp of 3e-5, and the weights are exponentials of it
    torch.testing.assert_close(mechanism.float()(q, k, v, mask).y.double(), expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(mechanism.weights(q, k, v, mask).sum(-1), torch.ones(3, HEADS, 100))


@pytest.mark.usefixtures("plain")
def test_huge_key_changes_no_earlier_output() -> None:
    """A maximum over all keys reveals the future: earlier outputs change, or become 0."""
    for word, options, _ in CASES:
        mechanism = build(word, **options).float()
        q, k, v = (x.float() for x in inputs(20))
        before = mechanism(q, k, v, packed(20)).y[:, :, :19]
        k[:, :, 19] *= 300
        torch.testing.assert_close(mechanism(q, k, v, packed(20)).y[:, :, :19], before)


@torch.no_grad()
def test_keys_that_grow_within_a_chunk_leave_earlier_sums_exact() -> None:
    """In float32 against float64: queries before the large keys are in the same chunk."""
    mechanism = build("linear", feature_map="exp")
    torch.manual_seed(0)
    q, k, v = (0.1 * torch.randn(1, HEADS, 256, WIDTH, dtype=torch.float64) for _ in range(3))
    k = k + torch.where(torch.arange(256) < 230, -8.0, 8.0)[:, None]
    mask = Mask.of(torch.ones(1, 256, dtype=torch.bool), queries=256, causal=True, start=0)
    expected = mechanism(q, k, v, mask).y
    y = mechanism.float()(q.float(), k.float(), v.float(), mask).y
    torch.testing.assert_close(y.double(), expected, atol=1e-5, rtol=1e-5)


def test_sums_change_their_unit_when_keys_become_large(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism, qkv = build("linear", feature_map="exp"), trainable(inputs(60))
    qkv[1].data[:, :, 30:] += 200

    def compute() -> list[Tensor]:
        first = mechanism(*qkv, packed(60))
        later = mechanism(*(x[:, :, :1] for x in qkv), packed(61, start=60), state=first.state)
        return with_gradients([first.y, later.y], qkv)

    assert_same_for_each(monkeypatch, fast_cpu, "PLAIN", (True, False), compute, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_compiled_form_agrees() -> None:
    mechanism, qkv = build("linear"), trainable(inputs(40))
    compiled = torch.compile(lambda q, k, v: mechanism(q, k, v, packed(40)).y, backend="eager")
    torch.testing.assert_close(compiled(*qkv), mechanism(*qkv, packed(40)).y)


def test_bias_or_missing_input_raises() -> None:
    mechanism, (q, k, v), mask = build("linear"), inputs(3), packed(3)
    with pytest.raises(ValueError, match="has no attention scores"):
        mechanism(q, k, v, mask, bias=torch.zeros(1, 1, 3, 3))
    with pytest.raises(ValueError, match="needs k with"):
        mechanism(q, None, None, mask)
    with pytest.raises(ValueError, match="needs q with"):
        mechanism(None, k, v, mask)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("word", "options", "name"), CASES[1:])
@pytest.mark.usefixtures("plain")
def test_large_inputs_lose_no_more_than_their_rounding(
    word: str, options: dict[str, object], name: str, causal: bool
) -> None:
    """With one shift for all features the one that mattered to a query could be 0 in float32."""
    mechanism, valid = build(word, **options), padded(90)
    for scale in (1, 10, 40):
        q, k, v = (x.float() for x in inputs(90))
        results = []
        for dtype in (torch.float32, torch.float64):
            qkv = trainable(x.to(dtype) for x in (q * scale, k * scale, v))
            y = mechanism.to(dtype)(*qkv, Mask.of(valid, 90, causal=causal)).y * valid[:, None, :, None]
            results.append([x.double() / x.abs().max() for x in with_gradients(y, qkv)])
        # a logarithm of the performer is about |k|^2, and its rounding a relative error
        tolerance = 1e-5 + 2e-6 * (scale**2 if word == "performer" else scale)
        torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("plain")
def test_large_inputs_in_parts_equal_one_pass() -> None:
    mechanism = build("linear", feature_map="exp").float()
    q, k, v = (x.float() for x in inputs(50))
    qkv = (q * 40, k * 40, v)
    outputs, state, start = list[Tensor](), None, 0
    for end in (20, 21, 22, 40, 50):
        output = mechanism(*(x[:, :, start:end] for x in qkv), packed(end, start=start), state=state)
        outputs.append(output.y)
        state, start = output.state, end
    torch.testing.assert_close(torch.cat(outputs, 2), mechanism(*qkv, packed(50)).y, rtol=1e-4, atol=1e-4)
