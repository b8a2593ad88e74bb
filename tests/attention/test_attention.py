"""Tests of single properties of mechanisms; tests/contract has those that all mechanisms share."""

import re

import pytest
import torch
from helpers.contract_cases import ANY_NUMBER
from helpers.tensors import packed
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention import Mask, append, reorder
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.mechanisms import facts

WIDTH, HEADS, LONGEST = 16, 4, 600
WORDS = mechanisms.names()
NEEDED = {word: {"parts": ("scaled-dot", "gaussian")} for word in ("mixture", "interleaved")}
"""Options without which a mechanism cannot be built."""


def build(word: str, dtype: torch.dtype = torch.float64, **options: object) -> MultiHead:
    """Return a layer whose scores vary enough to show an error."""
    torch.manual_seed(3)
    layer = MultiHead.build(word, WIDTH, HEADS, LONGEST, **NEEDED.get(word, {}) | options)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return layer.to(dtype)


def inputs(rows: int, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, length, WIDTH, generator=torch.Generator().manual_seed(length), dtype=dtype)


def all_valid(rows: int, length: int) -> Tensor:
    return torch.ones(rows, length, dtype=torch.bool)


def test_masked_keys_can_be_infinite() -> None:
    x = torch.randn(1, 1, 3, 4)
    k = torch.cat((x[:, :, :2], torch.full((1, 1, 1, 4), torch.inf)), 2)
    mask = Mask.of(torch.tensor([[True, True, False]]), 3, causal=False)
    assert MultiHead.build("linear", 4, 1, 8).mechanism(x, k, k, mask).y.isfinite().all()


@pytest.mark.parametrize("option", ["attention_dropout", "score_noise"])
@pytest.mark.parametrize("word", ["fixed-pattern", "synthesizer-random", "scaled-dot"])
def test_each_row_of_a_batch_has_its_own_dropout_and_noise(word: str, option: str) -> None:
    first, second = build(word, **{option: 0.5})(inputs(1, 16).expand(2, -1, -1), packed(16, causal=False)).y
    assert not torch.allclose(first, second)


def test_mask_of_another_shape_raises() -> None:
    layer, x = build("scaled-dot"), inputs(2, 5)
    for rows, keys, queries, reason in (
        (2, 7, 5, "7 keys, but there are 5"),
        (2, 5, 3, "3 queries, but x has 5 tokens"),
        (3, 5, 5, "3 rows, but x has 2"),
    ):
        with pytest.raises(ValueError, match=reason):
            layer(x, Mask.of(all_valid(rows, keys), queries, causal=True))
    with pytest.raises(ValueError, match="build the layer with cross=True"):
        layer(x, Mask.of(all_valid(2, 5), 5, causal=True), memory=x)


def test_batch_without_rows() -> None:
    for word in WORDS:
        mask = Mask.of(all_valid(0, 5), 5, causal=not facts(word).encoder)
        assert build(word)(inputs(0, 5), mask).y.shape == (0, 5, WIDTH), word


@pytest.mark.sampled(5)
@pytest.mark.parametrize("word", WORDS)
def test_autocast_is_near_float32(word: str) -> None:
    layer, x = build(word, torch.float32), inputs(2, 300, torch.float32)
    causal = mechanisms.resolve_capabilities(word, NEEDED.get(word, {})).causal
    mask = Mask.of(all_valid(2, 300), 300, causal=causal)
    exact = layer.eval()(x, mask).y
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x, mask).y
    y.float().sum().backward()
    assert (y - exact).abs().mean() < 0.05 * exact.abs().mean()


@pytest.mark.parametrize("room", [0, 1, 3])
@torch.no_grad()
def test_reordered_caches_grow_like_concatenated_tensors(room: int) -> None:
    """Steps of one and of two positions, beyond the length from which caches grow in blocks."""
    state, flags = torch.randn(4, 2, 3, 5), torch.ones(4, 3, dtype=torch.bool)
    expected = state.clone()
    for step in range(50):
        rows = torch.randint(0, 4, (3 if step == 20 else len(expected),)) % len(expected)
        (state, none), flags = reorder(((state, None), flags), rows, room=room)
        expected = expected[rows]
        assert none is None
        assert torch.equal(state, expected)
        new = torch.randn(len(rows), 2, 1 + step % 2, 5)
        expected = torch.cat((expected, new), 2)
        state = append(state, new, expected.shape[2])
        assert torch.equal(state, expected)
    assert flags.shape == (3, 3)


def test_gradients_pass_through_reordering() -> None:
    state = torch.randn(2, 1, 3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(reorder((state,), torch.tensor([1, 1]), room=1)[0].sum(), state)
    assert gradient.sum((1, 2, 3)).tolist() == [0.0, 24.0]


def test_unknown_mechanism_or_option_raises_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="did you mean scaled-dot"):
        MultiHead.build("scaled-dto", 8, 2, 10)
    with pytest.raises(UsageError, match="did you mean trainable"):
        MultiHead.build("synthesizer-random", 8, 2, 10, trainabel=True)
    with pytest.raises(UsageError, match="cannot be cross attention"):
        MultiHead.build("synthesizer-random", 8, 2, 10, cross=True)


@pytest.mark.parametrize("word", WORDS)
def test_invalid_value_of_any_option_raises_with_its_name(word: str) -> None:
    for option in facts(word).options:
        for value in ("nonsense", *(() if (word, option) in ANY_NUMBER else (-1,))):
            message = "the message must name the option"
            try:
                build(word, **{option: value})
                message = "refuse it (`above`, `at_least`), or add it to contract_cases.ANY_NUMBER"
            except UsageError as error:
                if option in str(error):
                    continue
            pytest.fail(f"{word} with {option} = {value!r}: {message}")


@pytest.mark.parametrize("word", WORDS)
def test_facts_read_without_importing_equal_the_class(word: str) -> None:
    read, mechanism = facts(word), mechanisms.load(word)
    for name in ("uses", "causal", "encoder", "cross", "limit", "positions", "map", "cost", "why", "quadratic"):
        assert getattr(read, name) == getattr(mechanism, name), name
    assert read.doc
    message = f"quadratic is {read.quadratic}, but cost is {read.cost} (T*S if quadratic)"
    assert read.quadratic == ("T*S" in read.cost), message


CROSS: list[tuple[str, dict[str, object]]] = [(word, {}) for word in WORDS if facts(word).cross]
CROSS += [("linear", {"feature_map": "exp"}), ("linear", {"feature_map": "taylor"})]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(("word", "options"), CROSS)
def test_cross_attention_to_an_empty_memory_returns_zero(word: str, options: dict[str, object], grad: bool) -> None:
    layer, x = build(word, cross=True, **options), inputs(3, 4)
    mechanism, width = layer.mechanism, WIDTH // HEADS
    mask = Mask.cross(all_valid(3, 0), 4)
    q = torch.randn(3, HEADS * mechanism.query_sets, 4, width, dtype=x.dtype).requires_grad_(grad)
    k = torch.zeros(3, mechanism.key_heads, 0, width, dtype=x.dtype).requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        first = mechanism(q, k, k, mask)
        later = mechanism(q, None, None, mask, state=first.state)
        assert first.y.shape == later.y.shape == (3, HEADS, 4, width)
        assert first.y.count_nonzero() == later.y.count_nonzero() == 0
        y = layer(x, mask, memory=torch.zeros(3, 0, WIDTH, dtype=x.dtype)).y
        torch.testing.assert_close(y, layer.o.bias.expand_as(y))
    total = (first.y + later.y).sum()
    if grad and total.requires_grad:
        gradients = torch.autograd.grad(total, [q, k, *mechanism.parameters()], allow_unused=True)
        assert all(gradient is None or gradient.count_nonzero() == 0 for gradient in gradients)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("word", WORDS)
def test_second_derivative_is_correct_or_raises(word: str, causal: bool) -> None:
    if not (facts(word).causal if causal else facts(word).encoder):
        pytest.skip(f"{word} has no such role")
    layer, x = build(word), inputs(1, 5).requires_grad_()
    mask = Mask.of(all_valid(1, 5), 5, causal=causal)

    def total(x: Tensor) -> Tensor:
        # the cubes depend on x too: without them, autograd itself would report a missing derivative
        return layer(x, mask).y.square().sum() + (x**3).sum()

    direction = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)
    try:
        (slope,) = torch.autograd.grad(total(x), [x], create_graph=True)
        (second,) = torch.autograd.grad((slope * direction).sum(), [x])
    except RuntimeError as error:
        kernel = "_scaled_dot_product_flash_attention_for_cpu_backward"  # torch has no second derivative of it
        assert re.search(f"no second derivatives|{kernel} is not implemented", str(error))  # noqa: PT017
        return
    step = 1e-5
    near = [(x + sign * step * direction).detach().requires_grad_() for sign in (1, -1)]
    after, before = (torch.autograd.grad(total(point), [point])[0] for point in near)
    torch.testing.assert_close(second, (after - before) / (2 * step), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("word", "parts", "expected"),
    [
        ("mixture", ("dot", "synthesizer-random"), True),
        ("interleaved", ("local", "linear"), False),
        ("interleaved", ("local", "atrous"), True),
        ("interleaved", ("performer", "scaled-dot"), True),
    ],
)
def test_composite_is_quadratic_if_a_part_is(word: str, parts: tuple[str, ...], expected: bool) -> None:
    spec = mechanisms.resolve_capabilities(word, {"parts": parts})
    assert (spec.quadratic, "T*S" in spec.cost) == (expected, expected)
