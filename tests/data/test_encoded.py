"""Tests of encoded splits: their content, counts of dropped rows, caching and damage."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.encoded_rows import encode_rows
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data import corpus_files
from attnkit.data.encoded import Blocks, Encoded, Ragged, RowEncoder, encode
from attnkit.data.rows import Counts, Row
from attnkit.data.tokenizer import EOS, UNK, Tokenizer
from attnkit.errors import DataError
from attnkit.recipe import schema

ROWS = [
    Row("the cat sees", "DIE KATZE SIEHT"),
    Row("", "NICHTS"),
    Row("the dog", "DER HUND"),
    Row("a long long row of words", "EINE LANGE LANGE REIHE VON WORTEN"),
    Row("empty", " \u2028"),
    Row("the \u6f22", "DIE \u6f22\u5b57"),
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    known = [Row(row.source.strip("\u6f22"), row.target.strip("\u6f22\u5b57")) for row in ROWS]
    return Tokenizer.train(schema.TokenizerConfig(type="word", size=60, shared=False), known)


def ids_of(split: Encoded) -> list[tuple[list[int], list[int]]]:
    """Return the ids of source and target of each row."""
    assert split.source is not None
    return [(split.source[i].tolist(), split.target[i].tolist()) for i in range(len(split))]


@pytest.mark.parametrize(
    ("options", "kept", "length", "counts"),
    [
        ({"max_length": 50}, (0, 2, 3, 5), 50, {}),
        ({"max_length": 4}, (0, 2, 5), 3, {"too_long": 1}),  # three words and EOS fit
        ({"max_length": 3, "truncate": True}, (0, 2, 3, 5), 2, {"truncated": 2}),
    ],
    ids=["empty", "too long", "truncated"],
)
def test_dropped_and_truncated_rows_are_counted(
    tokenizer: Tokenizer, tmp_path: Path, options: dict[str, int], kept: tuple[int, ...], length: int, counts: Any
) -> None:
    split = encode_rows(ROWS, tokenizer, tmp_path / "k", **options)
    expected = []
    for row in (ROWS[i] for i in kept):
        source, target = tokenizer.source.encode([row.source])[0], tokenizer.target.encode([row.target])[0]
        expected.append(([*source[:length], EOS], target[:length]))
    assert ids_of(split) == expected
    # one unknown word in a source and one in a target
    assert split.counts == Counts(rows=6, kept=len(kept), empty=2, unknown=2, **counts)
    assert ids_of(split)[-1][1][-1] == UNK


def test_second_call_reads_no_rows_and_returns_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def rows(counts: Counts) -> Iterator[Row]:
        for row in ROWS:
            counts.rows += 1
            counts.breaks = 1
            yield row

    counts, counts_again = Counts(), Counts()
    first = encode(rows(counts), RowEncoder(tokenizer, 9), tmp_path / "k", counts)
    second = encode(rows(counts_again), RowEncoder(tokenizer, 9), tmp_path / "k", counts_again)
    assert first.counts == second.counts
    assert (second.counts.rows, second.counts.breaks, second.counts.kept) == (6, 1, 4)
    assert counts_again == Counts()
    assert ids_of(first) == ids_of(second)
    assert first.digest == second.digest == Encoded.open(first.path).digest


def test_files_are_hashed_once(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of --jobs receive the hashes that the command has computed."""
    path = encode_rows(ROWS, tokenizer, tmp_path / "k", max_length=9).path
    time.sleep(2 * corpus_files.SETTLED / 1e9)
    digest = Encoded.open(path).digest
    with monkeypatch.context() as patch:
        patch.setattr(corpus_files, "sha256_file", None)
        assert Encoded.open(path).digest == digest
    (path / "target.ids").write_bytes(b"0")
    with pytest.raises(DataError, match=r"target\.ids: content does not match"):
        Encoded.open(path)


def test_ids_have_four_bytes_from_65536_pieces_on(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = encode_rows(ROWS, tokenizer, tmp_path / "small", max_length=9)
    monkeypatch.setattr(type(tokenizer.source), "__len__", lambda self: 1 << 16)
    large = encode_rows(ROWS, tokenizer, tmp_path / "large", max_length=9)
    assert (small.target.ids.dtype, large.target.ids.dtype) == (np.uint16, np.uint32)
    assert ids_of(small) == ids_of(large)
    sizes = [(split.path / "target.ids").stat().st_size for split in (small, large)]
    assert sizes[1] == 2 * sizes[0]


def test_arrays_are_memory_mapped_and_read_only(tokenizer: Tokenizer, tmp_path: Path) -> None:
    split = encode_rows(ROWS, tokenizer, tmp_path / "k", max_length=9)
    assert isinstance(split.target.ids.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        split.target.ids[0] = 1


@pytest.mark.parametrize("name", ["meta.json", "source.ids", "source.offsets", "target.ids", "target.offsets"])
@pytest.mark.parametrize("damage", ["absent", "empty", "cut", "flipped", "longer"])
def test_damaged_cache_is_rebuilt(tokenizer: Tokenizer, tmp_path: Path, name: str, damage: str) -> None:
    first = encode_rows(ROWS, tokenizer, tmp_path / "k", max_length=9)
    path = first.path / name
    content = path.read_bytes()
    if damage == "absent":
        path.unlink()
    else:
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 2
        damaged = {"empty": b"", "cut": content[:-3], "flipped": flipped, "longer": content + b"}"}
        path.write_bytes(damaged[damage])
    second = encode_rows(ROWS, tokenizer, tmp_path / "k", max_length=9)
    assert (second.digest, second.counts) == (first.digest, first.counts)
    assert path.read_bytes() == content


def test_split_without_usable_rows_is_empty(tokenizer: Tokenizer, tmp_path: Path) -> None:
    split = encode_rows(ROWS[1:2], tokenizer, tmp_path / "k", max_length=9)
    assert len(split) == len(split.source) == 0
    assert split.counts == Counts(rows=1, empty=1)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sampled_segmentations_differ_by_seed_and_side(kind: str, tmp_path: Path) -> None:
    rows = [Row("the old cat sees the older dog", "the old cat sees the older dog")] * 30
    tokenizer = Tokenizer.train(schema.TokenizerConfig.model_validate({"type": kind, "size": 40}), rows)

    def sampled(key: str, seed: int) -> list[tuple[list[int], list[int]]]:
        return ids_of(encode_rows(rows, tokenizer, tmp_path / key, max_length=90, sample=(0.3, seed)))

    first = sampled("1", 1)
    assert first == sampled("1-again", 1)
    assert first != sampled("2", 2)
    assert [source[:-1] for source, _ in first] != [target for _, target in first]
    assert {tuple(tokenizer.target.decode([target])) for _, target in first} == {(rows[0].target,)}


def test_stream_is_paragraphs_each_followed_by_eos(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows = [Row("", row.target) for row in ROWS]
    split = encode_rows(rows, tokenizer, tmp_path / "k", max_length=4, stream=True)
    expected = [i for ids in tokenizer.target.encode([row.target for row in rows]) if ids for i in [*ids, EOS]]
    assert split.source is None
    assert np.asarray(split.target.ids).tolist() == expected
    assert split.counts == Counts(rows=6, kept=5, empty=1, unknown=1)
    assert len(split) == -(-len(expected) // 4)
    assert split.digest == Encoded.open(split.path).digest


@given(st.integers(0, 40), st.integers(1, 9))
def test_blocks_contain_every_token_once_in_order(tokens: int, length: int) -> None:
    ids = np.arange(4, 4 + tokens, dtype=np.uint16)
    blocks = Blocks(ids, length)
    outputs = []
    for row in range(len(blocks)):
        outputs += [*blocks[row].tolist(), *blocks.last(np.array([row])).tolist()]
        assert len(blocks[row]) == blocks.lengths[row]
    assert outputs == ids.tolist()
    assert all(blocks.lengths[:-1] == length - 1)


def test_ragged_rows_are_slices() -> None:
    ragged = Ragged(np.array([5, 6, 7], np.uint16), np.array([0, 2, 2, 3]))
    assert [ragged[i].tolist() for i in range(3)] == [[5, 6], [], [7]]
    assert ragged.lengths.tolist() == [2, 0, 1]
    assert ragged.lengths.dtype == np.int32
    assert ragged.last(np.array([0, 2])).tolist() == [EOS, EOS]
