"""Plans use every row once, keep the budget, and depend on nothing but their arguments; batches hold exactly the
tokens of their rows, padded on the right."""

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

PAIRS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), max_size=400)


def sides(pairs: list[tuple[int, int]]) -> tuple[Lengths, Lengths]:
    """Source and target lengths."""
    both = np.array(pairs, np.int32).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def like_multi30k(rows: int = 29_000) -> tuple[Lengths, Lengths]:
    """Correlated lengths with the means and spreads of Multi30k."""
    generator = np.random.default_rng(0)
    source = np.clip(generator.lognormal(2.6, 0.3, rows), 4, 60)
    target = np.clip(source * generator.normal(1.05, 0.2, rows), 3, 70)
    return source.astype(np.int32), target.astype(np.int32)


def same(first: Plan, second: Plan) -> bool:
    return len(first) == len(second) and all(map(np.array_equal, first, second))


@given(PAIRS, st.integers(1, 500), st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_every_row_stands_in_one_batch(
    pairs: list[tuple[int, int]], budget: int, seed: int, epoch: int, shuffle: bool
) -> None:
    source, target = sides(pairs)
    batches = plan(source, target, batch_tokens=budget, seed=seed, epoch=epoch, shuffle=shuffle)
    used = [row for batch in batches for row in batch.tolist()]
    assert sorted(used) == list(range(len(pairs)))


@given(PAIRS, st.integers(1, 500), st.none() | st.integers(1, 20_000))
def test_batches_keep_both_budgets_and_only_single_rows_exceed_them(
    pairs: list[tuple[int, int]], budget: int, attention: int | None
) -> None:
    source, target = sides(pairs)
    for batch in plan(source, target, batch_tokens=budget, seed=1, epoch=0, attention_budget=attention):
        width = max(source[batch].max(), target[batch].max() + 1)
        if len(batch) > 1:
            assert len(batch) * width <= budget
            assert attention is None or len(batch) * width**2 <= attention


@given(PAIRS, st.integers(1, 500))
def test_no_batch_could_take_the_next_row(pairs: list[tuple[int, int]], budget: int) -> None:
    source, target = sides(pairs)
    batches = plan(source, target, batch_tokens=budget, seed=0, epoch=0, shuffle=False)
    for batch, following in pairwise(batches):
        rows = [*batch, following[0]]
        assert len(rows) * max(source[rows].max(), target[rows].max() + 1) > budget


@given(PAIRS, st.integers(1, 500), st.integers(0, 9), st.integers(0, 9))
def test_the_same_arguments_give_the_same_plan(
    pairs: list[tuple[int, int]], budget: int, seed: int, epoch: int
) -> None:
    source, target = sides(pairs)
    first = plan(source, target, batch_tokens=budget, seed=seed, epoch=epoch)
    plan(source, target, batch_tokens=budget, seed=seed + 1, epoch=epoch)
    assert same(first, plan(source, target, batch_tokens=budget, seed=seed, epoch=epoch))


def test_every_seed_and_epoch_has_another_plan() -> None:
    source, target = like_multi30k()
    plans = [plan(source, target, batch_tokens=4096, seed=seed, epoch=epoch) for seed in (1, 2) for epoch in (0, 1, 2)]
    for first, second in combinations(plans, 2):
        batches = [{frozenset(batch.tolist()) for batch in batches} for batches in (first, second)]
        # Other rows meet; the very widest and narrowest alone may find themselves together again.
        assert len(batches[0] & batches[1]) < 0.05 * len(first)


def test_without_shuffling_there_is_one_plan() -> None:
    source, target = like_multi30k(2000)
    first, second = (plan(source, target, batch_tokens=1000, seed=seed, epoch=seed, shuffle=False) for seed in (1, 2))
    assert same(first, second)
    widths = [max(source[batch].max(), target[batch].max() + 1) for batch in first]
    assert widths == sorted(widths)


def test_a_plan_is_the_same_in_every_process_and_release() -> None:
    """The order comes from raw PCG64 output, which numpy guarantees; a resume relies on it."""
    target = np.arange(200, dtype=np.int32) % 17
    batches = plan(None, target, batch_tokens=64, seed=1, epoch=2)
    text = repr([batch.tolist() for batch in batches])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "74f713a12f23750b"


def test_a_stream_needs_no_source() -> None:
    target = np.array([7, 7, 7, 7, 2], np.int32)
    batches = plan(None, target, batch_tokens=16, seed=1, epoch=0, shuffle=False)
    assert [batch.tolist() for batch in batches] == [[4, 0], [1, 2], [3]]


def test_without_rows_there_are_no_batches() -> None:
    nothing = np.zeros(0, np.int32)
    empty = plan(nothing, nothing, batch_tokens=10, seed=1, epoch=0)
    assert list(empty) == []
    assert padding_share(empty, nothing) == 0.0


def test_padding_share_is_the_share_of_cells_without_a_token() -> None:
    lengths = np.array([4, 1, 2, 2], np.int32)
    pairs = Plan(np.arange(4), np.array([0, 2, 4]), np.array([1, 0]))
    assert [batch.tolist() for batch in pairs] == [[2, 3], [0, 1]]
    assert padding_share(pairs, lengths) == pytest.approx(3 / 12)


def test_batches_of_all_widths_come_in_any_order() -> None:
    source, target = like_multi30k()
    batches = plan(source, target, batch_tokens=4096, seed=1, epoch=0)
    widths = [int(source[batch].max()) for batch in batches]
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.3


def test_padding_of_lengths_like_those_of_multi30k_is_small() -> None:
    source, target = like_multi30k()
    batches = plan(source, target, batch_tokens=4096, seed=1, epoch=0)
    assert padding_share(batches, source) < 0.07
    assert padding_share(batches, target + 1) < 0.07
    full = sum(len(b) * max(source[b].max(), target[b].max() + 1) for b in batches)
    assert full / (4096 * len(batches)) > 0.97


Ids = list[list[int]]
SEQUENCES = st.lists(
    st.tuples(st.lists(st.integers(4, 65_535), min_size=1, max_size=9), st.lists(st.integers(4, 65_535), max_size=9)),
    min_size=1,
    max_size=12,
)


def ragged(rows: Ids) -> Ragged:
    offsets = np.cumsum([0, *map(len, rows)])
    return Ragged(np.array([i for row in rows for i in row], np.uint16), offsets)


def pairs(sources: Ids, targets: Ids) -> Encoded:
    return Encoded(ragged(sources), ragged(targets), Counts(), "", Path())


def stream(ids: list[int], length: int) -> Encoded:
    return Encoded(None, Blocks(np.array(ids, np.uint16), length), Counts(), "", Path())


def padded(rows: Ids) -> Ids:
    """The plain way."""
    longest = max(map(len, rows))
    return [row + [PAD] * (longest - len(row)) for row in rows]


def test_a_batch_by_hand() -> None:
    batch = collate(pairs([[7, 8, EOS], [9, EOS]], [[4], [5, 6]]), np.array([0, 1]))
    assert batch.source is not None
    assert batch.source.tolist() == [[7, 8, EOS], [9, EOS, PAD]]
    assert batch.input.tolist() == [[BOS, 4, PAD], [BOS, 5, 6]]
    assert batch.output.tolist() == [[4, EOS, PAD], [5, 6, EOS]]
    assert batch.tokens == 5
    assert type(batch.tokens) is int
    assert {t.dtype for t in batch[:3]} == {torch.int64}


@given(SEQUENCES, st.data())
def test_gathering_agrees_with_a_loop_over_rows(rows: list[tuple[list[int], list[int]]], data: st.DataObject) -> None:
    sources, targets = [[*source, EOS] for source, _ in rows], [target for _, target in rows]
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=6))
    batch = collate(pairs(sources, targets), np.array(chosen))
    assert batch.source is not None
    assert batch.source.tolist() == padded([sources[i] for i in chosen])
    assert batch.input.tolist() == padded([[BOS, *targets[i]] for i in chosen])
    assert batch.output.tolist() == padded([[*targets[i], EOS] for i in chosen])
    assert batch.rows.tolist() == chosen
    assert batch.tokens == int((batch.output != PAD).sum())


def test_blocks_of_a_stream_by_hand() -> None:
    batch = collate(stream([4, 5, 6, EOS, 7], 3), np.array([0, 1]))
    assert batch.source is None
    assert batch.input.tolist() == [[BOS, 4, 5], [BOS, EOS, PAD]]
    assert batch.output.tolist() == [[4, 5, 6], [EOS, 7, PAD]]
    assert batch.tokens == 5


@pytest.mark.parametrize("tokens", [1, 6, 7, 12, 25])
def test_a_stream_predicts_every_token_once_an_epoch(tokens: int) -> None:
    ids = list(range(4, 4 + tokens))
    encoded = stream(ids, 6)
    batches = plan(None, encoded.target.lengths, batch_tokens=18, seed=1, epoch=0)
    seen = []
    for rows in batches:
        batch = collate(encoded, rows)
        assert batch.output.shape[0] * batch.output.shape[1] <= 18
        seen += batch.output[batch.output != PAD].tolist()
    assert sorted(seen) == ids
