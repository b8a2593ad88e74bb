"""Tests of attention over some distances only: blocks against the plain path, steps, counts, memory."""

from typing import Any

import pytest
import torch
from helpers.tensors import packed, sequences, trainable, valid_tokens
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
OPTION = {"local": "window", "atrous": "rate", "sparse": "rate"}
LENGTHS = [1, 2, 7, 64, 65, 200]
HEADS, WIDTH = 2, 4


def build(word: str, options: dict[str, Any]) -> Pattern:
    mechanism = MultiHead.build(word, HEADS * WIDTH, HEADS, 600, **options).mechanism
    assert isinstance(mechanism, Pattern)
    return mechanism


def inputs(rows: int, length: int) -> list[Tensor]:
    return trainable(2 * x for x in sequences(length, WIDTH, WIDTH, WIDTH, rows=rows, heads=HEADS))


def padded(length: int) -> Tensor:
    """Return rows with padding nowhere, right, left, on both sides, in between, and everywhere."""
    third, quarter = length // 3, length // 4
    pads = [slice(0), slice(length - third, None), slice(third), slice(quarter), slice(third, length // 2)]
    valid = valid_tokens(length, *pads, slice(None))
    valid[3, length - quarter :] = False
    return valid


def masks(length: int, causal: bool) -> list[Mask]:
    valid = padded(length)
    found = [
        Mask.of(valid[:1].expand(6, -1), length, causal),
        Mask.of(valid[:2].repeat(3, 1), length, causal),
        Mask.of(valid, length, causal),
        packed(length, causal),
    ]
    return found if causal else [*found, Mask.right(valid[[0, 1, 0, 1, 1, 5]])]


def both_paths(
    mechanism: Pattern, qkv: list[Tensor], mask: Mask, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Tensor, ...]]:
    """Return outputs and gradients in blocks, and on the plain path; of real queries."""
    results = []
    # outputs of padding are arbitrary
    real = (mask.valid if mask.layout != "packed" else mask.valid.expand(len(qkv[0]), -1))[:, None, :, None]
    for limit, min_queries in ((0, 16), (10**9, 64)):
        monkeypatch.setattr(sparse_pattern, "PLAIN_UP_TO", limit)
        monkeypatch.setattr(sliding_window, "MIN_QUERIES", min_queries)
        y = mechanism(*qkv, mask).y * real
        loss = (y * torch.linspace(1, 2, y[0].numel(), dtype=y.dtype).view_as(y[0])).sum()
        results.append((y.detach(), *torch.autograd.grad(loss, qkv)))
    return results


@pytest.mark.sampled(7)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("word", "options"), WORDS)
def test_blocks_equal_the_plain_path_forward_and_backward(
    word: str, options: dict[str, int], length: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism, qkv = build(word, options), inputs(6, length)
    for mask in masks(length, causal):
        torch.testing.assert_close(*both_paths(mechanism, qkv, mask, monkeypatch), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("word", OPTION)
def test_blocks_without_the_cpu_kernel_equal_the_plain_path(
    word: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of other devices: fused kernels that may not support empty rows."""
    mechanism, qkv = build(word, {OPTION[word]: 5}), inputs(6, 70)
    monkeypatch.setattr(fast_cpu, "PLAIN", True)
    monkeypatch.setattr(masks_module, "readable", lambda x: False)
    for mask in masks(70, causal):
        torch.testing.assert_close(*both_paths(mechanism, qkv, mask, monkeypatch), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_scores_can_be_beyond_the_range_of_exponentials(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs(1, 100)
    qkv = trainable(x.float() for x in (20 * q, k, v))
    assert (qkv[0] @ qkv[1].mT).max() / WIDTH**0.5 > 150  # e^89 is beyond float32
    blocks, plain = both_paths(build("sparse", {"rate": 3}), qkv, packed(100, causal), monkeypatch)
    # an ulp of a score is 1.5e-5; the gradient of k is multiplied by 20 and reaches 229
    for found, expected, atol in zip(blocks, plain, (1e-4, 1e-3, 5e-3, 1e-3), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=atol)


@pytest.mark.parametrize(("word", "options"), WORDS)
def test_long_part_after_a_cache_equals_its_part_of_one_pass(
    word: str, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_pattern, "PLAIN_UP_TO", 0)
    mechanism, qkv, valid = build(word, options), inputs(6, 200), padded(200)
    whole = mechanism(*qkv, Mask.of(valid, 200, causal=True)).y
    state = mechanism(*(x[:, :, :90] for x in qkv), Mask.of(valid[:, :90], 90, True)).state
    rest = mechanism(*(x[:, :, 90:] for x in qkv), Mask.of(valid, 110, True, 90), state).y
    real = valid[:, None, 90:, None]
    torch.testing.assert_close(rest * real, whole[:, :, 90:] * real, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layout", ["any", "packed"])
@pytest.mark.parametrize(("word", "options"), WORDS)
@torch.no_grad()
def test_decoding_step_reads_no_key_outside_its_pattern(word: str, options: dict[str, int], layout: str) -> None:
    mechanism, (q, k, v) = build(word, options), inputs(1, 100)
    unseen = ~mechanism.sees(99 - torch.arange(100))
    assert unseen.any()
    valid = torch.ones(1, 100, dtype=torch.bool)
    mask = packed(100, start=99) if layout == "packed" else Mask.of(valid, 1, True, 99)
    expected = mechanism(q, k, v, Mask.of(valid, 100, True)).y[:, :, 99:]
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan  # 0 times NaN would be NaN
    torch.testing.assert_close(mechanism(q[:, :, 99:], k, v, mask).y, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("word", OPTION)
def test_no_tensor_of_a_long_sequence_is_quadratic(word: str, causal: bool) -> None:
    mechanism, length = build(word, {OPTION[word]: 16}), 2048
    qkv, valid = inputs(1, length), torch.ones(1, length, dtype=torch.bool)
    with torch.profiler.profile(profile_memory=True) as profile:
        torch.autograd.grad(mechanism(*qkv, Mask.of(valid, length, causal)).y.sum(), qkv)
    largest = max(event.self_cpu_memory_usage for event in profile.events() or [])
    assert 0 < largest < length * length  # bytes, of numbers of 8


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("word", "options"), WORDS)
def test_number_of_keys_seen_equals_that_of_the_mask(word: str, options: dict[str, int], causal: bool) -> None:
    mechanism, valid = build(word, options), padded(33)[:5]
    mask = Mask.of(valid, 33, causal)
    counted = mechanism.keys_seen(mask).masked_fill(~valid.unsqueeze(1), 0)
    assert torch.equal(counted, mechanism.allowed(mask).sum(-1).masked_fill(~valid.unsqueeze(1), 0))


def test_distances_do_not_count_padding() -> None:
    allowed = build("local", {"window": 1}).allowed(Mask.of(valid_tokens(6, slice(2, 4)), 6, causal=False))
    assert allowed[0, 0, 4].tolist() == [False, True, False, False, True, True]


@pytest.mark.parametrize(
    ("word", "causal", "pairs", "first", "second"),
    [
        ("local", False, 44, "11110000", "11111000"),
        ("local", True, 26, "10000000", "11000000"),
        ("atrous", False, 22, "10010010", "01001001"),
        ("atrous", True, 15, "10000000", "01000000"),
        ("sparse", False, 48, "11110010", "11111001"),
        ("sparse", True, 28, "10000000", "11000000"),
    ],
)
def test_allowed_pairs_of_eight_tokens(word: str, causal: bool, pairs: int, first: str, second: str) -> None:
    """With a window or rate of 3: the number of pairs, and the keys of the first two tokens."""
    allowed = build(word, {OPTION[word]: 3}).allowed(packed(8, causal))
    rows = ["".join(map(str, row)) for row in allowed[0, 0, :2].int().tolist()]
    assert (allowed.sum().item(), rows) == (pairs, [first, second])
