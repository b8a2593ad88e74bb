"""Sums of kernel attention agree with the formula, with shifts and without."""

import pytest
import torch
from helpers.kernel_reference import attend, similarities
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


def mechanism(word: str, options: dict[str, object]) -> Kernel:
    torch.manual_seed(3)
    made = MultiHead.build(word, HEADS * WIDTH, HEADS, 600, **options).mechanism
    assert isinstance(made, Kernel)
    return made.double().eval()


def inputs(length: int, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [
        (torch.randn(3, HEADS, length, WIDTH, generator=generator, dtype=torch.float64) * scale).requires_grad_()
        for _ in range(3)
    ]


def some_pads(length: int) -> Tensor:
    """One row padded on the left, one on the right, one not."""
    valid = torch.ones(3, length, dtype=torch.bool)
    valid[1, :2] = False
    valid[2, length - length // 3 :] = False
    return valid


def assert_equal(found: list[Tensor], wanted: list[Tensor], tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("word", "options", "name"), CASES)
def test_answers_and_gradients_are_those_of_the_formula(
    word: str, options: dict[str, object], name: str, causal: bool, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_cpu, "PLAIN", plain)
    made = mechanism(word, options)
    projection = getattr(made, "projection", None)
    for length in (1, 2, 33, 70):
        valid = some_pads(length)
        given = inputs(length)
        y = made(*given, Mask.of(valid, length, causal=causal)).y
        q, k, v = given
        wanted = attend(similarities(name, q, k, projection), v, valid, causal=causal)
        real = valid[:, None, :, None]
        assert_equal(
            [y * real, *torch.autograd.grad((y * real).square().sum(), given)],
            [wanted * real, *torch.autograd.grad((wanted * real).square().sum(), given)],
        )


@pytest.mark.parametrize(("word", "options", "name"), CASES)
def test_short_texts_are_answered_by_pairs_as_by_sums(word: str, options: dict[str, object], name: str) -> None:
    made = mechanism(word, options)
    for length in (3, 9, 40):
        found, given = [], inputs(length)
        for chunk in (80, 1):  # the second leaves no room for pairs
            made.chunk = chunk
            out = made(*given, Mask.of(some_pads(length), length, causal=True))
            sums, peak = out.state
            sums = sums if peak is None else sums * peak.exp().unsqueeze(-1)
            total = out.y.square().sum() + sums.square().sum()
            found.append([out.y, *torch.autograd.grad(total, given)])
        assert_equal(*found)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("scale", [1, 40, 400])
def test_rising_exponents_neither_overflow_nor_vanish(
    scale: float, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a shift from the whole sequence the first keys were 0 in float32, and so the answer."""
    monkeypatch.setattr(fast_cpu, "PLAIN", plain)
    made = mechanism("linear", {"feature_map": "exp"})
    length = 100
    q, k, v = (x.detach() for x in inputs(length))
    k = k + torch.linspace(-scale, scale, length, dtype=torch.float64)[:, None]
    mask = Mask.packed(length, k.device, causal=True)
    wanted = attend(similarities("exp", q, k), v, torch.ones(3, length, dtype=torch.bool), causal=True)
    torch.testing.assert_close(made(q, k, v, mask).y, wanted, rtol=1e-9, atol=1e-9)
    single = made.float()(q.float(), k.float(), v.float(), mask).y
    # |k| of 400 has an ulp of 3e-5, and the weights are exponentials of it
    torch.testing.assert_close(single.double(), wanted, rtol=0, atol=1e-3)
    torch.testing.assert_close(
        made.weights(q.float(), k.float(), v.float(), mask).sum(-1), torch.ones(3, HEADS, length)
    )


@pytest.mark.parametrize("plain", [True, False])
def test_a_huge_later_key_changes_nothing_before_it(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A maximum over all keys leaks the future: earlier answers move, or become 0."""
    monkeypatch.setattr(fast_cpu, "PLAIN", plain)
    for word, options, _ in CASES:
        made = mechanism(word, options).float()
        q, k, v = (x.detach().float() for x in inputs(20))
        mask = Mask.packed(20, k.device, causal=True)
        before = made(q, k, v, mask).y[:, :, :19]
        k[:, :, 19] *= 300
        torch.testing.assert_close(made(q, k, v, mask).y[:, :, :19], before)


def test_keys_that_grow_within_a_chunk_leave_earlier_sums_exact() -> None:
    """In float32 against float64: the chunk with the large keys holds queries before them."""
    made = mechanism("linear", {"feature_map": "exp"})
    torch.manual_seed(0)
    q, k, v = (0.1 * torch.randn(1, HEADS, 256, WIDTH, dtype=torch.float64) for _ in range(3))
    k = k + torch.where(torch.arange(256) < 230, -8.0, 8.0)[:, None]
    mask = Mask.of(torch.ones(1, 256, dtype=torch.bool), queries=256, causal=True, start=0)
    with torch.no_grad():
        exact = made(q, k, v, mask).y
        found = made.float()(q.float(), k.float(), v.float(), mask).y
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)


def test_sums_after_a_calm_start_go_on_in_another_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    made = mechanism("linear", {"feature_map": "exp"})
    q, k, v = (x.detach() for x in inputs(60))
    k[:, :, 30:] += 200
    found = []
    for plain in (True, False):
        monkeypatch.setattr(fast_cpu, "PLAIN", plain)
        given = [x.clone().requires_grad_() for x in (q, k, v)]
        first = made(*given, Mask.packed(60, k.device, causal=True))
        later = made(
            *(x[:, :, :1] for x in given), Mask.packed(61, k.device, causal=True, start=60), state=first.state
        )
        total = first.y.square().sum() + later.y.square().sum()
        found.append([first.y, later.y, *torch.autograd.grad(total, given)])
    assert_equal(*found)


@pytest.mark.slow
def test_a_compiled_form_agrees() -> None:
    made = mechanism("linear", {})
    given = inputs(40)
    mask = Mask.packed(40, torch.device("cpu"), causal=True)
    compiled = torch.compile(lambda q, k, v: made(q, k, v, mask).y, backend="eager")
    torch.testing.assert_close(compiled(*given), made(*given, mask).y)


def test_a_kernel_refuses_biases_and_calls_without_keys() -> None:
    made, (q, k, v) = mechanism("linear", {}), inputs(3)
    mask = Mask.packed(3, q.device, causal=True)
    with pytest.raises(ValueError, match="has no attention scores"):
        made(q, k, v, mask, bias=torch.zeros(1, 1, 3, 3))
    with pytest.raises(ValueError, match="needs k with"):
        made(q, None, None, mask)
    with pytest.raises(ValueError, match="needs q with"):
        made(None, k, v, mask)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("word", "options", "name"), CASES[1:])
def test_large_inputs_lose_no_more_than_their_rounding(
    word: str, options: dict[str, object], name: str, causal: bool, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under one shift for all features the one that mattered to a query could be 0 in float32."""
    monkeypatch.setattr(fast_cpu, "PLAIN", plain)
    made = mechanism(word, options)
    valid = some_pads(90)
    mask = Mask.of(valid, 90, causal=causal)
    for scale in (1, 10, 40):
        q, k, v = (x.detach().float() for x in inputs(90))
        found = []
        for kind in (torch.float32, torch.float64):
            given = [x.to(kind).requires_grad_() for x in (q * scale, k * scale, v)]
            y = made.to(kind)(*given, mask).y * valid[:, None, :, None]
            gradients = torch.autograd.grad(y.square().sum(), given)
            found.append([x.double() / x.abs().max() for x in (y, *gradients)])
        # a logarithm of the performer is about |k|^2, and its rounding a relative error
        size = scale**2 if word == "performer" else scale
        assert_equal(*found, tolerance=1e-5 + 2e-6 * size)


@pytest.mark.parametrize("plain", [True, False])
def test_large_inputs_go_on_from_a_state(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_cpu, "PLAIN", plain)
    made = mechanism("linear", {"feature_map": "exp"}).float()
    q, k, v = (x.detach().float() for x in inputs(50))
    q, k = q * 40, k * 40
    whole = made(q, k, v, Mask.packed(50, k.device, causal=True)).y
    parts, state, start = list[Tensor](), None, 0
    for end in (20, 21, 22, 40, 50):
        mask = Mask.packed(end, k.device, causal=True, start=start)
        out = made(*(x[:, :, start:end] for x in (q, k, v)), mask, state=state)
        parts.append(out.y)
        state, start = out.state, end
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-4, atol=1e-4)
