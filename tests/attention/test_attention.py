"""Single properties of mechanisms; what all of them promise is tested in contract/."""

import re

import pytest
import torch
from helpers.contract_cases import ANY_NUMBER
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention import Mask, append, reorder
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.mechanisms import facts

KERNEL = "_scaled_dot_product_flash_attention_for_cpu_backward"
"""What has no second derivative in torch."""

WIDTH, HEADS, LONGEST = 16, 4, 600
WORDS = mechanisms.names()


NEEDED = {word: {"parts": ("scaled-dot", "gaussian")} for word in ("mixture", "interleaved")}
"""Options without which a word does not build."""


def layer(word: str, dtype: torch.dtype = torch.float64, **options: object) -> MultiHead:
    """A layer whose scores are spread enough that an error shows."""
    torch.manual_seed(3)
    made = MultiHead.build(word, WIDTH, HEADS, LONGEST, **NEEDED.get(word, {}) | options)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return made.to(dtype)


def inputs(rows: int, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, length, WIDTH, generator=torch.Generator().manual_seed(length), dtype=dtype)


def everything(rows: int, length: int) -> Tensor:
    return torch.ones(rows, length, dtype=torch.bool)


def test_masked_keys_get_no_gradient_even_when_they_hold_infinities() -> None:
    kernel = MultiHead.build("linear", 4, 1, 8).mechanism
    x = torch.randn(1, 1, 3, 4)
    k = x.clone()
    k[:, :, 2] = torch.inf
    y = kernel(x, k, k, Mask.of(torch.tensor([[True, True, False]]), 3, causal=False)).y
    assert y.isfinite().all()


@pytest.mark.parametrize("option", ["attention_dropout", "score_noise"])
@pytest.mark.parametrize("word", ["fixed-pattern", "synthesizer-random", "scaled-dot"])
def test_each_row_of_a_batch_has_its_own_dropout_and_noise(word: str, option: str) -> None:
    made = layer(word, **{option: 0.5})
    x = inputs(1, 16).expand(2, -1, -1)
    first, second = made(x, Mask.packed(16, x.device, causal=False)).y
    assert not torch.allclose(first, second)


def test_a_mask_of_other_tokens_is_refused() -> None:
    made, x = layer("scaled-dot"), inputs(2, 5)
    for rows, keys, queries, reason in (
        (2, 7, 5, "7 keys, but there are 5"),
        (2, 5, 3, "3 queries, but x has 5 tokens"),
        (3, 5, 5, "3 rows, but x has 2"),
    ):
        with pytest.raises(ValueError, match=reason):
            made(x, Mask.of(everything(rows, keys), queries, causal=True))
    with pytest.raises(ValueError, match="build the layer with cross=True"):
        made(x, Mask.of(everything(2, 5), 5, causal=True), memory=x)


def test_a_batch_of_no_rows_has_no_answers() -> None:
    for word in WORDS:
        mask = Mask.of(everything(0, 5), 5, causal=not facts(word).encoder)
        assert layer(word)(inputs(0, 5), mask).y.shape == (0, 5, WIDTH), word


@pytest.mark.sampled(5)
@pytest.mark.parametrize("word", WORDS)
def test_autocast_is_no_obstacle(word: str) -> None:
    made, x = layer(word, torch.float32), inputs(2, 300, torch.float32)
    mask = Mask.of(everything(2, 300), 300, causal=mechanisms.resolve_capabilities(word, NEEDED.get(word, {})).causal)
    exact = made.eval()(x, mask).y
    with torch.autocast("cpu", torch.bfloat16):
        y = made(x, mask).y
    y.float().sum().backward()
    assert (y - exact).abs().mean() < 0.05 * exact.abs().mean()


@pytest.mark.parametrize("room", [0, 1, 3])
def test_reordered_caches_grow_as_ones_that_are_joined_anew(room: int) -> None:
    """Steps of one and of two positions, past the length from which caches grow in blocks."""
    state, plain = torch.randn(4, 2, 3, 5), None
    flags = torch.ones(4, 3, dtype=torch.bool)
    with torch.no_grad():
        plain = state.clone()
        for step in range(50):
            rows = torch.randint(0, 4, (3 if step == 20 else len(plain),)) % len(plain)
            (state, none), flags = reorder(((state, None), flags), rows, room=room)
            plain = plain[rows]
            assert none is None
            assert torch.equal(state, plain)
            new = torch.randn(len(rows), 2, 1 + step % 2, 5)
            plain = torch.cat((plain, new), 2)
            state = append(state, new, plain.shape[2])
            assert torch.equal(state, plain)
    assert flags.shape == (3, 3)


def test_reordering_lets_gradients_through() -> None:
    state = torch.randn(2, 1, 3, 4, requires_grad=True)
    reorder((state,), torch.tensor([1, 1]), room=1)[0].sum().backward()
    assert state.grad is not None
    assert state.grad.sum((1, 2, 3)).tolist() == [0.0, 24.0]


def test_an_unknown_word_or_option_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean scaled-dot"):
        MultiHead.build("scaled-dto", 8, 2, 10)
    with pytest.raises(UsageError, match="did you mean trainable"):
        MultiHead.build("synthesizer-random", 8, 2, 10, trainabel=True)
    with pytest.raises(UsageError, match="cannot be cross attention"):
        MultiHead.build("synthesizer-random", 8, 2, 10, cross=True)


@pytest.mark.parametrize("word", WORDS)
def test_values_that_no_option_takes_are_refused_by_name(word: str) -> None:
    for option in facts(word).options:
        for value in ("nonsense", *(() if (word, option) in ANY_NUMBER else (-1,))):
            told = "the message must name the option"
            try:
                layer(word, **{option: value})
                told = "refuse it (`above`, `at_least`), or add it to contract_cases.ANY_NUMBER"
            except UsageError as error:
                if option in str(error):
                    continue
            pytest.fail(f"{word} with {option} = {value!r}: {told}")


@pytest.mark.parametrize("word", WORDS)
def test_facts_read_without_importing_equal_the_class(word: str) -> None:
    names = ("uses", "causal", "encoder", "cross", "limit", "positions", "map", "cost", "why")
    read, made = facts(word), mechanisms.load(word)
    for name in (*names, "quadratic"):
        assert getattr(read, name) == getattr(made, name), name
    assert read.doc
    told = f"quadratic is {read.quadratic}, but cost is {read.cost} (T*S if quadratic)"
    assert read.quadratic == ("T*S" in read.cost), told


CROSS: list[tuple[str, dict[str, object]]] = [(word, {}) for word in WORDS if facts(word).cross]
CROSS += [("linear", {"feature_map": "exp"}), ("linear", {"feature_map": "taylor"})]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(("word", "options"), CROSS)
def test_cross_attention_to_an_empty_memory_answers_zero(word: str, options: dict[str, object], grad: bool) -> None:
    made = layer(word, cross=True, **options)
    mixing, x = made.mechanism, inputs(3, 4)
    mask = Mask.cross(everything(3, 0), 4)
    width = WIDTH // HEADS
    heads = HEADS * mixing.query_sets
    q = torch.randn(3, heads, 4, width, dtype=x.dtype).requires_grad_(grad)
    k = torch.zeros(3, mixing.key_heads, 0, width, dtype=x.dtype).requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        first = mixing(q, k, k, mask)
        later = mixing(q, None, None, mask, state=first.state)
        assert first.y.shape == later.y.shape == (3, HEADS, 4, width)
        assert first.y.count_nonzero() == later.y.count_nonzero() == 0
        whole = made(x, mask, memory=torch.zeros(3, 0, WIDTH, dtype=x.dtype)).y
        torch.testing.assert_close(whole, made.o.bias.expand_as(whole))
    if grad and (first.y + later.y).requires_grad:
        wanted = [q, k, *mixing.parameters()]
        gradients = torch.autograd.grad((first.y + later.y).sum(), wanted, allow_unused=True)
        assert all(one is None or one.count_nonzero() == 0 for one in gradients)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("word", WORDS)
def test_a_second_derivative_is_right_or_refused(word: str, causal: bool) -> None:
    if not (facts(word).causal if causal else facts(word).encoder):
        pytest.skip("it cannot have this role")
    made, x = layer(word), inputs(1, 5).requires_grad_()
    mask = Mask.of(everything(1, 5), 5, causal=causal)
    cubes = x**3  # another way to x, beside which a missing share would not be noticed

    def total(x: Tensor) -> Tensor:
        return made(x, mask).y.square().sum()

    along = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)
    try:
        (slope,) = torch.autograd.grad(total(x) + cubes.sum(), [x], create_graph=True)
        (found,) = torch.autograd.grad((slope * along).sum(), [x])
    except RuntimeError as error:
        assert re.search(f"no second derivatives|{KERNEL} is not implemented", str(error))  # noqa: PT017
        return
    step, ends = 1e-5, []
    for sign in (1, -1):
        near = (x + sign * step * along).detach().requires_grad_()
        ends.append(torch.autograd.grad(total(near) + (near**3).sum(), [near])[0])
    torch.testing.assert_close(found, (ends[0] - ends[1]) / (2 * step), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("word", "parts", "expected"),
    [
        ("mixture", ("dot", "synthesizer-random"), True),
        ("interleaved", ("local", "linear"), False),
        ("interleaved", ("local", "atrous"), True),
        ("interleaved", ("performer", "scaled-dot"), True),
    ],
)
def test_a_composite_is_quadratic_where_a_part_is(word: str, parts: tuple[str, ...], expected: bool) -> None:
    able = mechanisms.resolve_capabilities(word, {"parts": parts})
    assert able.quadratic is expected
    assert expected == ("T*S" in able.cost)
