"""Batches hold exactly the tokens of their rows, padded on the right."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data.batch import collate
from attnkit.data.batch_plan import plan
from attnkit.data.encoded import Blocks, Encoded, Ragged
from attnkit.data.rows import Counts
from attnkit.data.tokenizer import BOS, EOS, PAD

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
