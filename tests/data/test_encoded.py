"""Encoded splits hold what the rows say, survive damage, and count what they drop."""

import time
from pathlib import Path

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


def expected(tokenizer: Tokenizer, rows: list[Row], room: int) -> list[tuple[list[int], list[int]]]:
    """The plain way: row by row; the first `room` ids of each side."""
    pairs = []
    for row in rows:
        source, target = tokenizer.source.encode([row.source])[0], tokenizer.target.encode([row.target])[0]
        pairs.append(([*source[:room], EOS], target[:room]))
    return pairs


def lists(split: Encoded) -> list[tuple[list[int], list[int]]]:
    """The pairs of a split."""
    assert split.source is not None
    return [(split.source[i].tolist(), split.target[i].tolist()) for i in range(len(split))]


def test_rows_with_an_empty_side_are_dropped_and_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    split = encode_rows(ROWS, tokenizer, tmp_path / "k", max_length=50)
    kept = [ROWS[i] for i in (0, 2, 3, 5)]
    assert lists(split) == expected(tokenizer, kept, 50)
    # One unknown word in the source, one in the target.
    assert split.counts == Counts(rows=6, kept=4, empty=2, unknown=2)
    assert split.target[3].tolist()[-1] == UNK


def test_longer_rows_are_dropped_and_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    # Three words and EOS fit.
    split = encode_rows(ROWS, tokenizer, tmp_path / "k", max_length=4)
    assert lists(split) == expected(tokenizer, [ROWS[i] for i in (0, 2, 5)], 3)
    assert split.counts == Counts(rows=6, kept=3, empty=2, too_long=1, unknown=2)
    assert max(split.source.lengths) == 4


def test_longer_rows_are_truncated_and_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    split = encode_rows(ROWS, tokenizer, tmp_path / "k", max_length=3, truncate=True)
    assert lists(split) == expected(tokenizer, [ROWS[i] for i in (0, 2, 3, 5)], 2)
    assert split.counts == Counts(rows=6, kept=4, empty=2, truncated=2, unknown=2)


def test_the_second_call_reads_no_rows_and_returns_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def rows(counts: Counts) -> object:
        for row in ROWS:
            counts.rows += 1
            counts.breaks = 1
            yield row

    counts = Counts()
    first = encode(rows(counts), RowEncoder(tokenizer, 9), tmp_path / "k", counts)
    again = Counts()
    second = encode(rows(again), RowEncoder(tokenizer, 9), tmp_path / "k", again)
    assert first.counts == second.counts
    assert (second.counts.rows, second.counts.breaks, second.counts.kept) == (6, 1, 4)
    assert again == Counts()
    assert lists(first) == lists(second)
    assert first.digest == second.digest == Encoded.open(first.path).digest


def test_files_that_were_hashed_are_not_hashed_again(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the processes of --jobs, which are told what the command has hashed."""
    path = encode_rows(ROWS, tokenizer, tmp_path / "k", max_length=9).path
    time.sleep(2 * corpus_files.SETTLED / 1e9)
    digest = Encoded.open(path).digest
    with monkeypatch.context() as patch:
        patch.setattr(corpus_files, "sha256_file", None)
        assert Encoded.open(path).digest == digest
    (path / "target.ids").write_bytes(b"0")
    with pytest.raises(DataError, match=r"target\.ids: content does not match"):
        Encoded.open(path)


def test_ids_take_two_bytes_and_four_from_65536_pieces_on(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = encode_rows(ROWS, tokenizer, tmp_path / "small", max_length=9)
    monkeypatch.setattr(type(tokenizer.source), "__len__", lambda self: 1 << 16)
    large = encode_rows(ROWS, tokenizer, tmp_path / "large", max_length=9)
    assert (small.target.ids.dtype, large.target.ids.dtype) == (np.uint16, np.uint32)
    assert lists(small) == lists(large)
    sizes = [(split.path / "target.ids").stat().st_size for split in (small, large)]
    assert sizes[1] == 2 * sizes[0]


def test_arrays_are_mapped_and_read_only(tokenizer: Tokenizer, tmp_path: Path) -> None:
    split = encode_rows(ROWS, tokenizer, tmp_path / "k", max_length=9)
    assert isinstance(split.target.ids.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        split.target.ids[0] = 1


@pytest.mark.parametrize("name", ["meta.json", "source.ids", "source.offsets", "target.ids", "target.offsets"])
@pytest.mark.parametrize("damage", ["absent", "empty", "cut", "flipped", "longer"])
def test_a_damaged_cache_is_noticed_and_rebuilt(tokenizer: Tokenizer, tmp_path: Path, name: str, damage: str) -> None:
    good = encode_rows(ROWS, tokenizer, tmp_path / "k", max_length=9)
    path = good.path / name
    content = path.read_bytes()
    if damage == "absent":
        path.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 2]) + content[middle + 1 :]
        changed = {"empty": b"", "cut": content[:-3], "flipped": flipped, "longer": content + b"}"}
        path.write_bytes(changed[damage])
    again = encode_rows(ROWS, tokenizer, tmp_path / "k", max_length=9)
    assert (again.digest, again.counts) == (good.digest, good.counts)
    assert path.read_bytes() == content


def test_a_split_without_usable_rows_is_empty(tokenizer: Tokenizer, tmp_path: Path) -> None:
    split = encode_rows(ROWS[1:2], tokenizer, tmp_path / "k", max_length=9)
    assert len(split) == len(split.source) == 0
    assert split.counts == Counts(rows=1, empty=1)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sampled_splits_differ_by_seed_and_side_alone(kind: str, tmp_path: Path) -> None:
    rows = [Row("the old cat sees the older dog", "the old cat sees the older dog")] * 30
    tokenizer = Tokenizer.train(schema.TokenizerConfig.model_validate({"type": kind, "size": 40}), rows)

    def sampled(key: str, seed: int) -> Encoded:
        return encode_rows(rows, tokenizer, tmp_path / key, max_length=90, sample=(0.3, seed))

    first, same, other = sampled("1", 1), sampled("1-again", 1), sampled("2", 2)
    assert lists(first) == lists(same)
    assert lists(first) != lists(other)
    assert [source[:-1] for source, _ in lists(first)] != [target for _, target in lists(first)]
    assert {tuple(tokenizer.target.decode([target])) for _, target in lists(first)} == {(rows[0].target,)}


def test_a_stream_is_paragraphs_with_eos_behind_each(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows = [Row("", row.target) for row in ROWS]
    split = encode_rows(rows, tokenizer, tmp_path / "k", max_length=4, stream=True)
    plain = [i for ids in tokenizer.target.encode([row.target for row in rows]) if ids for i in [*ids, EOS]]
    assert split.source is None
    assert np.asarray(split.target.ids).tolist() == plain
    assert split.counts == Counts(rows=6, kept=5, empty=1, unknown=1)
    assert len(split) == -(-len(plain) // 4)
    assert split.digest == Encoded.open(split.path).digest


@given(st.integers(0, 40), st.integers(1, 9))
def test_blocks_put_out_every_token_once_in_order(tokens: int, length: int) -> None:
    ids = np.arange(4, 4 + tokens, dtype=np.uint16)
    blocks = Blocks(ids, length)
    out = []
    for row in range(len(blocks)):
        out += [*blocks[row].tolist(), *blocks.last(np.array([row])).tolist()]
        assert len(blocks[row]) == blocks.lengths[row]
    assert out == ids.tolist()
    assert all(blocks.lengths[:-1] == length - 1)


def test_ragged_rows_are_slices() -> None:
    ragged = Ragged(np.array([5, 6, 7], np.uint16), np.array([0, 2, 2, 3]))
    assert [ragged[i].tolist() for i in range(3)] == [[5, 6], [], [7]]
    assert ragged.lengths.tolist() == [2, 0, 1]
    assert ragged.lengths.dtype == np.int32
    assert ragged.last(np.array([0, 2])).tolist() == [EOS, EOS]
