"""Tests of plans of batches (every row once, within the budget, reproducible) and of collating rows."""

import hashlib
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data.batch import Lengths, Plan, collate, padding_share, plan
from attnkit.data.encoded import Blocks, Encoded, Ragged
from attnkit.data.rows import Counts
from attnkit.data.tokenizer import BOS, EOS, PAD

Ids = list[list[int]]
LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), max_size=400).map(
    lambda pairs: np.array(pairs, np.int32).reshape(-1, 2).T
)
"""Source and target lengths [2, N]."""


def multi30k_lengths(rows: int = 29_000) -> tuple[Lengths, Lengths]:
    """Return correlated source and target lengths with the means and deviations of Multi30k."""
    generator = np.random.default_rng(0)
    source = np.clip(generator.lognormal(2.6, 0.3, rows), 4, 60)
    target = np.clip(source * generator.normal(1.05, 0.2, rows), 3, 70)
    return source.astype(np.int32), target.astype(np.int32)


def same(first: Plan, second: Plan) -> bool:
    return len(first) == len(second) and all(map(np.array_equal, first, second))


@given(LENGTHS, st.integers(1, 500), st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_every_row_is_in_one_batch(lengths: Lengths, budget: int, seed: int, epoch: int, shuffle: bool) -> None:
    batches = plan(*lengths, batch_tokens=budget, seed=seed, epoch=epoch, shuffle=shuffle)
    used = [row for batch in batches for row in batch.tolist()]
    assert sorted(used) == list(range(lengths.shape[1]))


@given(LENGTHS, st.integers(1, 500), st.none() | st.integers(1, 20_000))
def test_only_batches_of_one_row_exceed_the_budgets(lengths: Lengths, budget: int, attention: int | None) -> None:
    source, target = lengths
    for batch in plan(source, target, batch_tokens=budget, seed=1, epoch=0, attention_budget=attention):
        width = max(source[batch].max(), target[batch].max() + 1)
        if len(batch) > 1:
            assert len(batch) * width <= budget
            assert attention is None or len(batch) * width**2 <= attention


@given(LENGTHS, st.integers(1, 500))
def test_no_batch_has_room_for_the_next_row(lengths: Lengths, budget: int) -> None:
    source, target = lengths
    batches = plan(source, target, batch_tokens=budget, seed=0, epoch=0, shuffle=False)
    for batch, following in pairwise(batches):
        rows = [*batch, following[0]]
        assert len(rows) * max(source[rows].max(), target[rows].max() + 1) > budget


@given(LENGTHS, st.integers(1, 500), st.integers(0, 9), st.integers(0, 9))
def test_plan_is_a_function_of_its_arguments(lengths: Lengths, budget: int, seed: int, epoch: int) -> None:
    first = plan(*lengths, batch_tokens=budget, seed=seed, epoch=epoch)
    plan(*lengths, batch_tokens=budget, seed=seed + 1, epoch=epoch)
    assert same(first, plan(*lengths, batch_tokens=budget, seed=seed, epoch=epoch))


def test_every_seed_and_epoch_has_another_plan() -> None:
    lengths = multi30k_lengths()
    plans = [plan(*lengths, batch_tokens=4096, seed=seed, epoch=epoch) for seed in (1, 2) for epoch in (0, 1, 2)]
    for pair in combinations(plans, 2):
        first, second = ({frozenset(batch.tolist()) for batch in batches} for batches in pair)
        # only batches of the widest and narrowest rows may have the same rows again
        assert len(first & second) < 0.05 * len(pair[0])


def test_without_shuffling_the_plan_is_sorted_by_width() -> None:
    source, target = multi30k_lengths(2000)
    first, second = (plan(source, target, batch_tokens=1000, seed=seed, epoch=seed, shuffle=False) for seed in (1, 2))
    assert same(first, second)
    widths = [max(source[batch].max(), target[batch].max() + 1) for batch in first]
    assert widths == sorted(widths)


def test_plan_is_the_same_in_every_process_and_release() -> None:
    """The order comes from raw PCG64 output, which numpy guarantees; resuming relies on it."""
    target = np.arange(200, dtype=np.int32) % 17
    batches = plan(None, target, batch_tokens=64, seed=1, epoch=2)
    text = repr([batch.tolist() for batch in batches])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "74f713a12f23750b"


def test_plan_without_a_source() -> None:
    target = np.array([7, 7, 7, 7, 2], np.int32)
    batches = plan(None, target, batch_tokens=16, seed=1, epoch=0, shuffle=False)
    assert [batch.tolist() for batch in batches] == [[4, 0], [1, 2], [3]]


def test_padding_share_by_hand() -> None:
    lengths = np.array([4, 1, 2, 2], np.int32)
    batches = Plan(np.arange(4), np.array([0, 2, 4]), np.array([1, 0]))
    assert [batch.tolist() for batch in batches] == [[2, 3], [0, 1]]
    assert padding_share(batches, lengths) == pytest.approx(3 / 12)
    empty = plan(lengths[:0], lengths[:0], batch_tokens=10, seed=1, epoch=0)
    assert list(empty) == []
    assert padding_share(empty, lengths[:0]) == 0.0


def test_shuffled_batches_of_multi30k_lengths_have_little_padding() -> None:
    source, target = multi30k_lengths()
    batches = plan(source, target, batch_tokens=4096, seed=1, epoch=0)
    widths = [int(source[batch].max()) for batch in batches]
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.3
    assert padding_share(batches, source) < 0.07
    assert padding_share(batches, target + 1) < 0.07
    cells = sum(len(b) * max(source[b].max(), target[b].max() + 1) for b in batches)
    assert cells / (4096 * len(batches)) > 0.97


def ragged(rows: Ids) -> Ragged:
    return Ragged(np.array([i for row in rows for i in row], np.uint16), np.cumsum([0, *map(len, rows)]))


def pairs(sources: Ids, targets: Ids) -> Encoded:
    return Encoded(ragged(sources), ragged(targets), Counts(), "", Path())


def stream(ids: list[int], length: int) -> Encoded:
    return Encoded(None, Blocks(np.array(ids, np.uint16), length), Counts(), "", Path())


def padded(rows: Ids) -> Ids:
    longest = max(map(len, rows))
    return [row + [PAD] * (longest - len(row)) for row in rows]


def test_batch_of_pairs_by_hand() -> None:
    batch = collate(pairs([[7, 8, EOS], [9, EOS]], [[4], [5, 6]]), np.array([0, 1]))
    assert batch.source is not None
    assert batch.source.tolist() == [[7, 8, EOS], [9, EOS, PAD]]
    assert batch.input.tolist() == [[BOS, 4, PAD], [BOS, 5, 6]]
    assert batch.output.tolist() == [[4, EOS, PAD], [5, 6, EOS]]
    assert batch.tokens == 5
    assert type(batch.tokens) is int
    assert {t.dtype for t in batch[:3]} == {torch.int64}


IDS = st.integers(4, 65_535)
PAIRS = st.tuples(st.lists(IDS, min_size=1, max_size=9), st.lists(IDS, max_size=9))


@given(st.lists(PAIRS, min_size=1, max_size=12), st.data())
def test_collate_equals_a_loop_over_rows(rows: list[tuple[list[int], list[int]]], data: st.DataObject) -> None:
    sources, targets = [[*source, EOS] for source, _ in rows], [target for _, target in rows]
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=6))
    batch = collate(pairs(sources, targets), np.array(chosen))
    assert batch.source is not None
    assert batch.source.tolist() == padded([sources[i] for i in chosen])
    assert batch.input.tolist() == padded([[BOS, *targets[i]] for i in chosen])
    assert batch.output.tolist() == padded([[*targets[i], EOS] for i in chosen])
    assert batch.rows.tolist() == chosen
    assert batch.tokens == int((batch.output != PAD).sum())


def test_batch_of_a_stream_by_hand() -> None:
    batch = collate(stream([4, 5, 6, EOS, 7], 3), np.array([0, 1]))
    assert batch.source is None
    assert batch.input.tolist() == [[BOS, 4, 5], [BOS, EOS, PAD]]
    assert batch.output.tolist() == [[4, 5, 6], [EOS, 7, PAD]]
    assert batch.tokens == 5


@pytest.mark.parametrize("tokens", [1, 6, 7, 12, 25])
def test_every_token_of_a_stream_is_predicted_once_per_epoch(tokens: int) -> None:
    ids = list(range(4, 4 + tokens))
    encoded = stream(ids, 6)
    predicted = []
    for rows in plan(None, encoded.target.lengths, batch_tokens=18, seed=1, epoch=0):
        batch = collate(encoded, rows)
        assert batch.output.numel() <= 18
        predicted += batch.output[batch.output != PAD].tolist()
    assert sorted(predicted) == ids
