"""The contract of a mechanism, over every mechanism that ships."""

import pytest
import torch
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention import Mask, reorder
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.mechanisms import facts
from attnkit.positions import Rotary

WIDTH, HEADS, LONGEST = 16, 4, 600
WORDS = mechanisms.names()
CAUSAL = [word for word in WORDS if facts(word).causal]
CROSS = [word for word in WORDS if facts(word).cross]
LENGTHS = [1, 2, 7, 64, 65, 130]


def layer(word: str, dtype: torch.dtype = torch.float64, **options: object) -> MultiHead:
    """A layer whose scores are spread enough that an error shows."""
    torch.manual_seed(3)
    made = MultiHead.build(word, WIDTH, HEADS, LONGEST, **options)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return made.to(dtype)


def inputs(rows: int, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        rows, length, WIDTH, generator=torch.Generator().manual_seed(length), dtype=dtype
    )


def everything(rows: int, length: int) -> Tensor:
    return torch.ones(rows, length, dtype=torch.bool)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("word", WORDS)
def test_weights_times_values_is_the_answer(word: str, length: int) -> None:
    made = layer(word)
    x = inputs(2, length)
    mask = Mask.of(everything(2, length), length, causal=facts(word).causal)
    values = made.v(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    y = made.o((made.weights(x, mask) @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(y, made(x, mask).y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("word", WORDS)
def test_rows_of_weights_sum_to_one(word: str, causal: bool) -> None:
    maps = layer(word).weights(inputs(2, 9), Mask.of(everything(2, 9), 9, causal=causal))
    torch.testing.assert_close(maps.sum(-1), torch.ones_like(maps.sum(-1)))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("word", CAUSAL)
def test_the_future_leaks_neither_into_values_nor_into_gradients(word: str, length: int) -> None:
    made = layer(word)
    x = inputs(1, length).requires_grad_()
    mask = Mask.of(everything(1, length), length, causal=True)
    cut = length // 2
    y = made(x, mask).y
    (slope,) = torch.autograd.grad(y[:, : cut + 1].sum(), x)
    assert slope[:, cut + 1 :].abs().max().item() == 0 if cut + 1 < length else True
    changed = x.detach().clone()
    changed[:, cut + 1 :] = 50
    torch.testing.assert_close(made(changed, mask).y[:, : cut + 1], y[:, : cut + 1])
    assert slope[:, : cut + 1].abs().max() > 0


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 7, 65])
@pytest.mark.parametrize("word", WORDS)
def test_padding_changes_nothing(word: str, length: int, causal: bool, side: str) -> None:
    made = layer(word)
    x = inputs(1, length)
    garbage = inputs(1, 5) * 50
    plain = made(x, Mask.of(everything(1, length), length, causal=causal)).y
    pads = torch.zeros(1, 5, dtype=torch.bool)
    parts = [(garbage, pads), (x, everything(1, length))]
    parts = parts if side == "left" else parts[::-1]
    longer, valid = (torch.cat(pieces, 1) for pieces in zip(*parts, strict=True))
    y = made(longer, Mask.of(valid, length + 5, causal=causal)).y
    torch.testing.assert_close(y[:, 5:] if side == "left" else y[:, :length], plain)


@pytest.mark.parametrize("word", WORDS)
def test_masks_with_a_promised_layout_equal_the_general_one(word: str) -> None:
    made, x = layer(word), inputs(3, 11)
    valid = torch.arange(11) < torch.tensor([[11], [4], [7]])
    general = made(x, Mask.of(valid, 11, causal=False)).y
    promised = made(x, Mask.right(valid)).y
    torch.testing.assert_close(promised[valid], general[valid])
    packed = made(x, Mask.packed(11, x.device, causal=True)).y
    causal = made(x, Mask.of(valid, 11, causal=True)).y
    torch.testing.assert_close(packed[valid], causal[valid])


@pytest.mark.parametrize("word", CAUSAL)
def test_prefill_and_steps_with_reordered_rows_equal_the_full_pass(word: str) -> None:
    made, length = layer(word), 80
    x = inputs(3, length)
    valid = everything(3, length)
    valid[1, :3] = False  # one row is padded on the left
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        full = made(x, Mask.of(valid, length, causal=True)).y
        state, seen = None, []
        start = 0
        for new in (4, 1, 1, 70, 1, 3):
            mask = Mask.of(valid[:, : start + new], new, causal=True, start=start)
            out = made(x[:, start : start + new], mask, state=state)
            seen.append(out.y)
            start += new
            # the rows trade places, in the state and in everything still to come
            state = reorder(out.state, order)
            x, valid, full = x[order], valid[order], full[order]
            seen = [y[order] for y in seen]
    steps = torch.cat(seen, 1)
    torch.testing.assert_close(steps[valid], full[valid])


@pytest.mark.parametrize("word", CROSS)
def test_cached_cross_attention_and_folded_beams_equal_the_fresh_ones(word: str) -> None:
    made = layer(word, cross=True)
    memory, x = inputs(2, 13), inputs(6, 4)
    valid = torch.arange(13) < torch.tensor([[13], [5]])
    repeated = made(
        x, Mask.cross(valid.repeat_interleave(3, 0), 4), memory=memory.repeat_interleave(3, 0)
    ).y
    first = made(x[::3, :1], Mask.cross(valid, 1), memory=memory)
    folded = made(x, Mask.cross(valid, 4), state=first.state).y
    torch.testing.assert_close(folded, repeated)
    torch.testing.assert_close(made(x, Mask.cross(valid, 4), memory=memory).y, repeated)


@pytest.mark.parametrize("word", WORDS)
def test_a_query_that_sees_no_key_answers_zero_and_has_finite_gradients(word: str) -> None:
    made = layer(word)
    x = inputs(2, 6).requires_grad_()
    valid = everything(2, 6)
    valid[1] = False
    mask = Mask.of(valid, 6, causal=False)
    maps = made.weights(x, mask)
    assert maps[1].abs().max().item() == 0
    (slope,) = torch.autograd.grad(made(x, mask).y.sum(), x)
    assert slope.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("word", WORDS)
def test_forward_and_gradients_are_finite_in_short_floats(word: str, dtype: torch.dtype) -> None:
    made = layer(word, dtype)
    x = (inputs(2, 33) * 4).to(dtype).requires_grad_()
    y = made(x, Mask.of(everything(2, 33), 33, causal=facts(word).causal)).y
    y.float().square().sum().backward()
    assert y.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in made.parameters())


@pytest.mark.parametrize("length", [3, 70, 300])
@pytest.mark.parametrize("word", ["dot", "scaled-dot"])
def test_the_fused_kernel_equals_the_plain_path(
    word: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = layer(word)
    valid = torch.arange(length) < torch.tensor([[length], [max(1, length - 5)]])
    masks = [
        Mask.of(valid, length, causal=True),
        Mask.right(valid),
        Mask.packed(length, valid.device, causal=True),
    ]
    for mask in masks:
        answers = []
        for limit in (0, 10**9):
            monkeypatch.setattr("attnkit.mechanisms.dot.PLAIN_UP_TO", limit)
            x = inputs(2, length).requires_grad_()
            y = made(x, mask).y
            (slope,) = torch.autograd.grad(y[valid].square().sum(), x)
            answers.append((y[valid], slope))
        for fused, plain in zip(*answers, strict=True):
            torch.testing.assert_close(fused, plain, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("word", WORDS)
def test_a_saved_layer_loads_and_answers_the_same(word: str) -> None:
    made, other = layer(word), layer(word)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.zero_()
    other.load_state_dict(made.state_dict())
    x, mask = inputs(1, 5), Mask.of(everything(1, 5), 5, causal=False)
    torch.testing.assert_close(other(x, mask).y, made(x, mask).y)


@pytest.mark.parametrize("word", WORDS)
def test_the_worked_number_of_the_file_holds(word: str) -> None:
    assert "Worked number:" in facts(word).doc
    worked = mechanisms.load(word).worked()
    assert worked is not None
    torch.testing.assert_close(*worked, rtol=0, atol=5e-7)


def test_the_random_synthesizer_ignores_content() -> None:
    made = layer("synthesizer-random")
    mask = Mask.of(everything(1, 5), 5, causal=True)
    maps = made.weights(inputs(1, 5), mask)
    torch.testing.assert_close(made.weights(inputs(1, 5) * -3, mask), maps)
    assert made.q is None
    assert made.k is None


def test_a_fixed_random_table_is_saved_but_not_trained() -> None:
    made = MultiHead.build("synthesizer-random", 8, 2, 10, trainable=False)
    assert "mechanism.table" in made.state_dict()
    assert "mechanism.table" not in dict(made.named_parameters())


def test_a_text_longer_than_the_table_is_refused_with_the_reason() -> None:
    made = MultiHead.build("synthesizer-random", 8, 2, 10)
    x = torch.randn(1, 11, 8)
    with pytest.raises(ValueError, match="11 tokens is longer than its table of 10 positions"):
        made(x, Mask.of(everything(1, 11), 11, causal=False))


def test_masked_keys_get_no_gradient_even_when_they_hold_infinities() -> None:
    kernel = MultiHead.build("linear", 4, 1, 8).mechanism
    x = torch.randn(1, 1, 3, 4)
    k = x.clone()
    k[:, :, 2] = torch.inf
    y = kernel(x, k, k, Mask.of(torch.tensor([[True, True, False]]), 3, causal=False)).y
    assert y.isfinite().all()


def test_attention_dropout_acts_while_training_only() -> None:
    made = layer("scaled-dot", attention_dropout=0.5)
    x, mask = inputs(1, 40), Mask.of(everything(1, 40), 40, causal=False)
    torch.manual_seed(0)
    noisy = made(x, mask).y
    calm = made.eval()(x, mask).y
    assert not torch.allclose(noisy, calm)
    torch.testing.assert_close(made(x, mask).y, calm)


def test_rotary_scores_depend_on_distance_only() -> None:
    made = MultiHead.build("scaled-dot", 16, 2, 64, rotary=Rotary(8)).double()
    x = inputs(1, 1).expand(1, 12, 16)  # the same token everywhere
    maps = made.weights(x, Mask.of(everything(1, 12), 12, causal=False)).log()
    ratio = maps[..., 1:, 1:] - maps[..., 1:, :1]
    shifted = maps[..., :-1, :-1] - maps[..., :-1, :1]
    # log ratios of scores at equal distances agree up to one constant a row
    difference = ratio - shifted
    torch.testing.assert_close(difference, difference[..., :1].expand_as(difference))


def test_an_unknown_word_or_option_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'scaled-dot'"):
        MultiHead.build("scaled-dto", 8, 2, 10)
    with pytest.raises(UsageError, match="did you mean 'trainable'"):
        MultiHead.build("synthesizer-random", 8, 2, 10, trainabel=True)
    with pytest.raises(UsageError, match="cannot be cross attention"):
        MultiHead.build("synthesizer-random", 8, 2, 10, cross=True)


@pytest.mark.parametrize("word", WORDS)
def test_facts_read_without_importing_equal_the_class(word: str) -> None:
    read, made = facts(word), mechanisms.load(word)
    for name in ("uses", "causal", "cross", "limit", "positions", "map", "cost", "why"):
        assert getattr(read, name) == getattr(made, name)
    assert read.doc
