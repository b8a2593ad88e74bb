"""Attention over some distances only: blocks against the plain path, steps, counts."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attnkit.attention import Mask, sparse_pattern
from attnkit.attention import mask as masks_module
from attnkit.attention.sparse_pattern import Pattern
from attnkit.layers import MultiHead
from attnkit.ops import fast_cpu, sliding_window

WORDS = [
    ("local", {"window": 0}),
    ("local", {"window": 3}),
    ("local", {"window": 90}),
    ("atrous", {"rate": 2}),
    ("atrous", {"rate": 8}),
    ("sparse", {"rate": 2}),
    ("sparse", {"rate": 7}),
]
LENGTHS = [1, 2, 7, 64, 65, 200]
HEADS, WIDTH = 2, 4


def pattern(word: str, options: dict[str, Any]) -> Pattern:
    made = MultiHead.build(word, HEADS * WIDTH, HEADS, 600, **options).mechanism
    assert isinstance(made, Pattern)
    return made


def inputs(rows: int, length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shape = (rows, HEADS, length, WIDTH)
    return [(torch.randn(shape, generator=generator, dtype=torch.float64) * 2).requires_grad_() for _ in range(3)]


def padded(length: int) -> Tensor:
    """Rows without pads, with pads right, left, on both sides, in between; and one of pads only."""
    valid = torch.ones(6, length, dtype=torch.bool)
    valid[1, length - length // 3 :] = False
    valid[2, : length // 3] = False
    valid[3, : length // 4] = valid[3, length - length // 4 :] = False
    valid[4, length // 3 : length // 2] = False
    valid[5] = False
    return valid


def masks(length: int, causal: bool) -> list[Mask]:
    valid = padded(length)
    found = [
        Mask.of(valid[:1].expand(6, -1), length, causal),
        Mask.of(valid[:2].repeat(3, 1), length, causal),
        Mask.of(valid, length, causal),
        Mask.packed(length, valid.device, causal=causal),
    ]
    return found if causal else [*found, Mask.right(valid[[0, 1, 0, 1, 1, 5]])]


def both_paths(
    made: Pattern, parts: list[Tensor], mask: Mask, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Tensor, ...]]:
    """Answers and gradients in blocks, and on the plain path; of real queries."""
    found = []
    # no query of these is a pad where pads may answer anything
    real = (mask.valid if mask.layout != "packed" else mask.valid.expand(len(parts[0]), -1))[:, None, :, None]
    for limit in (0, 10**9):
        monkeypatch.setattr(sparse_pattern, "PLAIN_UP_TO", limit)
        monkeypatch.setattr(sliding_window, "MIN_QUERIES", 16 if limit == 0 else 64)
        y = made(*parts, mask).y * real
        loss = (y * torch.linspace(1, 2, y[0].numel(), dtype=y.dtype).view_as(y[0])).sum()
        found.append((y.detach(), *torch.autograd.grad(loss, parts)))
    return found


@pytest.mark.sampled(7)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("word", "options"), WORDS)
def test_blocks_equal_the_plain_path_forward_and_backward(
    word: str, options: dict[str, int], length: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, parts = pattern(word, options), inputs(6, length)
    for mask in masks(length, causal):
        fast, plain = both_paths(made, parts, mask, monkeypatch)
        torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_scores_may_lie_beyond_the_range_of_exponentials(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made, (q, k, v) = pattern("sparse", {"rate": 3}), inputs(1, 100)
    parts = [(20 * q).detach().float().requires_grad_(), k.float(), v.float()]
    assert (parts[0] @ parts[1].mT).max() / WIDTH**0.5 > 150  # e^89 is beyond float32
    mask = Mask.packed(100, q.device, causal=causal)
    fast, slow = both_paths(made, [x.detach().requires_grad_() for x in parts], mask, monkeypatch)
    # an ulp of a score is 1.5e-5; the gradient of k is multiplied by 20 and reaches 229
    for one, other, atol in zip(fast, slow, (1e-4, 1e-3, 5e-3, 1e-3), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=atol)


@pytest.mark.parametrize(("word", "options"), WORDS)
def test_a_long_piece_behind_a_cache_equals_its_part_of_the_whole(
    word: str, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_pattern, "PLAIN_UP_TO", 0)
    made, (q, k, v) = pattern(word, options), inputs(6, 200)
    valid = padded(200)
    whole = made(q, k, v, Mask.of(valid, 200, causal=True)).y
    state = made(q[:, :, :90], k[:, :, :90], v[:, :, :90], Mask.of(valid[:, :90], 90, True)).state
    rest = made(q[:, :, 90:], k[:, :, 90:], v[:, :, 90:], Mask.of(valid, 110, True, 90), state).y
    real = valid[:, None, 90:, None]
    torch.testing.assert_close(rest * real, whole[:, :, 90:] * real, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layout", ["any", "packed"])
@pytest.mark.parametrize(("word", "options"), WORDS)
def test_a_step_of_decoding_reads_no_key_outside_its_pattern(word: str, options: dict[str, int], layout: str) -> None:
    made, (q, k, v) = pattern(word, options), inputs(1, 100)
    unseen = ~made.sees(99 - torch.arange(100))
    assert unseen.any()
    everything = torch.ones(1, 100, dtype=torch.bool)
    mask = Mask.of(everything, 1, True, 99)
    if layout == "packed":
        mask = Mask.packed(100, q.device, causal=True, start=99)
    plain = made(q, k, v, Mask.of(everything, 100, True)).y[:, :, 99:]
    with torch.no_grad():
        k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan  # 0 times NaN would be NaN
    torch.testing.assert_close(made(q[:, :, 99:], k, v, mask).y, plain)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("word", ["local", "atrous", "sparse"])
def test_the_square_of_a_long_sequence_is_never_formed(word: str, causal: bool) -> None:
    option = "window" if word == "local" else "rate"
    made, length = pattern(word, {option: 16}), 2048
    parts = inputs(1, length)
    with torch.profiler.profile(profile_memory=True) as seen:
        y = made(*parts, Mask.of(torch.ones(1, length, dtype=torch.bool), length, causal)).y
        torch.autograd.grad(y.sum(), parts)
    largest = max(event.self_cpu_memory_usage for event in seen.events() or [])
    assert 0 < largest < length * length  # bytes, of numbers of 8


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("word", "options"), WORDS)
def test_keys_are_counted_without_the_square(word: str, options: dict[str, int], causal: bool) -> None:
    made = pattern(word, options)
    valid = padded(33)[:5]
    mask = Mask.of(valid, 33, causal)
    counted = made.keys_seen(mask).masked_fill(~valid.unsqueeze(1), 0)
    shown = made.allowed(mask).sum(-1).masked_fill(~valid.unsqueeze(1), 0)
    assert torch.equal(counted, shown)


def test_distances_count_real_tokens_only() -> None:
    valid = torch.ones(1, 6, dtype=torch.bool)
    valid[0, 2:4] = False
    seen = pattern("local", {"window": 1}).allowed(Mask.of(valid, 6, causal=False))[0, 0]
    assert seen[4].tolist() == [False, True, False, False, True, True]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("word", ["local", "atrous", "sparse"])
def test_without_the_kernel_of_the_cpu_blocks_answer_the_same(
    word: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of other devices, forced here: fused kernels that may not know empty rows."""
    option = "window" if word == "local" else "rate"
    made, parts = pattern(word, {option: 5}), inputs(6, 70)
    monkeypatch.setattr(fast_cpu, "PLAIN", True)
    monkeypatch.setattr(masks_module, "readable", lambda x: False)
    for mask in masks(70, causal):
        fast, plain = both_paths(made, parts, mask, monkeypatch)
        torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("word", "option", "causal", "pairs", "first", "second"),
    [
        ("local", "window", False, 44, "11110000", "11111000"),
        ("local", "window", True, 26, "10000000", "11000000"),
        ("atrous", "rate", False, 22, "10010010", "01001001"),
        ("atrous", "rate", True, 15, "10000000", "01000000"),
        ("sparse", "rate", False, 48, "11110010", "11111001"),
        ("sparse", "rate", True, 28, "10000000", "11000000"),
    ],
)
def test_of_eight_tokens_the_pairs_of_the_pattern_are_allowed(
    word: str, option: str, causal: bool, pairs: int, first: str, second: str
) -> None:
    """With a window or rate of 3: how many, and what the first two tokens see."""
    allowed = pattern(word, {option: 3}).allowed(Mask.packed(8, torch.device("cpu"), causal=causal))
    rows = ["".join(map(str, row)) for row in allowed[0, 0, :2].int().tolist()]
    assert (allowed.sum().item(), rows) == (pairs, [first, second])
