"""A split as ids on disk: tokenised once, memory-mapped, keyed by all that it depends on.

A finished folder holds, for each side, `<side>.ids` (little-endian uint16, or uint32 from 65,536
pieces on) and `<side>.offsets` (int64, rows + 1), and `meta.json` with sizes and SHA-256 of these
files and the counts of rows.  Pairs have both sides: source rows end with EOS, target rows have
neither BOS nor EOS.  A stream (language modelling) has only `target.ids`, each paragraph followed
by EOS.

Memory while writing is that of one chunk of rows.  Reading maps the files; the lengths that a
batch plan needs take 4 bytes a row and side.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnkit.data.rows import Counts, Row
from attnkit.data.tokenizer import EOS, UNK, Tokenizer, Vocabulary
from attnkit.errors import DataError
from attnkit.storage.cache import complete
from attnkit.storage.files import DISK, read_json, sha256_file, write_synced

FORMAT = 1

# A chunk ends when it has this many rows or, with long rows, this many characters.
CHUNK_ROWS = 10_000
CHUNK_CHARACTERS = 2_000_000

Ids = NDArray[np.unsignedinteger[Any]]
Report = Callable[[int], None]
"""Called with the number of rows read so far, after each chunk."""


class Ragged:
    """Rows of different length in one array: row i is ids[offsets[i]:offsets[i + 1]]."""

    def __init__(self, ids: Ids, offsets: NDArray[np.int64]) -> None:
        """ids [tokens] and offsets [rows + 1], mapped or in memory."""
        self.ids = ids
        self.offsets = offsets
        self.starts = offsets[:-1]

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each row, EOS included where the row has one; kept in memory once asked for."""
        return np.diff(self.offsets).astype(np.int32)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.starts)

    def __getitem__(self, row: int) -> Ids:
        """Ids of one row."""
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def last(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """What the decoder is to put out after each of these rows: EOS."""
        return np.full(len(rows), EOS)


class Blocks:
    """A stream of ids cut in blocks of `length` tokens, seen as rows like those of `Ragged`.

    A decoder reads BOS and a row and puts out the row and one token more.  So row i is block i
    without its last token, and `last` gives that token: every token of the stream is put out
    exactly once, and a block counts `lengths[i] + 1` tokens, just as a row with EOS does.
    """

    def __init__(self, ids: Ids, length: int) -> None:
        """ids [tokens]; `length` is the number of tokens put out in a block, at least 1."""
        self.ids = ids
        self.starts: NDArray[np.int64] = np.arange(0, len(ids), length, dtype=np.int64)
        ends = np.minimum(self.starts + length, len(ids))
        self.lengths: NDArray[np.int32] = (ends - self.starts - 1).astype(np.int32)

    def __len__(self) -> int:
        """Number of blocks; the last one may be shorter."""
        return len(self.lengths)

    def __getitem__(self, row: int) -> Ids:
        """Ids of one block without its last token."""
        return self.ids[self.starts[row] : self.starts[row] + self.lengths[row]]

    def last(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last token of each of these blocks."""
        tokens: Ids = self.ids[self.starts[rows] + self.lengths[rows]]
        return tokens.astype(np.int64)


@dataclass(frozen=True)
class Encoded:
    """An encoded split; `source` is None for a stream, whose target is seen in blocks."""

    source: Ragged | None
    target: Ragged | Blocks
    counts: Counts
    digest: str
    """SHA-256 in hexadecimal of all ids and offsets."""
    path: Path
    note: str | None = None
    """One line about a damaged cache that was rebuilt."""

    def __len__(self) -> int:
        """Number of rows, or of blocks of a stream."""
        return len(self.target)

    @classmethod
    def open(cls, path: Path) -> "Encoded":
        """Map a finished folder; every byte is compared with its SHA-256 first.

        Raises:
            DataError: a file is missing, damaged or of another format.
            MissingInputError: there is no meta.json.
        """
        meta = read_json(path / "meta.json")
        try:
            content = meta["content"]
            if _sha256(content) != meta["sha256"]:
                raise DataError(f"{path}: meta.json does not match its SHA-256")
            if content["format"] != FORMAT:
                raise DataError(f"{path}: format {content['format']!r}, not {FORMAT}")
            files: dict[str, str] = content["files"]
            dtype = {"uint16": "<u2", "uint32": "<u4"}[content["dtype"]]
            block: int = content["block"]
            counts = Counts(**content["counts"])
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}: meta.json is damaged: {error!r}") from error
        for name, expected in files.items():
            if sha256_file(path / name) != expected:
                raise DataError(f"{path / name}: content does not match its SHA-256")
        digest = _sha256(files)
        target = _map(path / "target.ids", dtype)
        if block:
            return cls(None, Blocks(target, block), counts, digest, path)
        source = Ragged(_map(path / "source.ids", dtype), _map(path / "source.offsets", "<i8"))
        return cls(
            source, Ragged(target, _map(path / "target.offsets", "<i8")), counts, digest, path
        )


def encode(
    rows: Iterable[Row],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    key: str,
    max_length: int,
    too_long: str,
    sample: tuple[float, int] | None = None,
    counts: Counts | None = None,
    stream: bool = False,
    report: Report | None = None,
) -> Encoded:
    """Encode rows into folder/key, or open what is there; `rows` is read only when needed.

    Rows with an empty side are dropped.  A row is too long when a side has more than `max_length`
    tokens with its EOS.

    Args:
        rows: pairs, or paragraphs in `target` when `stream` is set.
        tokenizer: vocabularies of both sides.
        folder: the cache.
        key: name of all that the result depends on; not checked here.
        max_length: in tokens, EOS included; for a stream the length of a block.
        too_long: "drop" or "truncate"; a stream needs neither.
        sample: (alpha, seed) of subword sampling, or None for the best segmentation.
        counts: what the reader of `rows` counts into; the encoder adds to it.
        stream: one stream of target ids seen in blocks, instead of pairs.
        report: called after each chunk.

    Raises:
        OutputPathError, OutputError: the cache cannot be written.
        AttnkitError: whatever reading `rows` raises.
    """
    if too_long not in ("drop", "truncate"):
        raise ValueError(f"too_long must be drop or truncate, is {too_long!r}")
    tally = Counts() if counts is None else counts
    cut = None if stream else _Cut(max_length, too_long == "truncate")

    def build(draft: Path) -> None:
        files = _write(rows, _EncodingJob(tokenizer, cut, sample, tally), draft, report)
        meta = {
            "format": FORMAT,
            "dtype": _dtype(tokenizer),
            "block": max_length if stream else 0,
            "files": files,
            "counts": asdict(tally),
        }
        text = json.dumps({"sha256": _sha256(meta), "content": meta}, indent=1)
        write_synced(draft / "meta.json", text.encode())

    encoded, note = complete(folder / key, Encoded.open, build)
    if counts is not None:
        for field in fields(Counts):
            setattr(counts, field.name, getattr(encoded.counts, field.name))
    return replace(encoded, note=note)


class _Cut(NamedTuple):
    """The rule for over-long pairs."""

    longest: int
    truncate: bool


class _Flat(NamedTuple):
    """Rows of a chunk one after the other, and the length of each."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]


class _Side:
    """Writes one side of a split: ids, and offsets where rows stay apart."""

    def __init__(self, folder: Path, name: str, dtype: str, rows: bool, stack: ExitStack) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._end = 0
        self._files: dict[str, tuple[BinaryIO, Any]] = {}
        for suffix in ("ids", "offsets") if rows else ("ids",):
            file = stack.enter_context(DISK.open(folder / f"{name}.{suffix}"))
            self._files[f"{name}.{suffix}"] = (file, hashlib.sha256())
        self._ids = f"{name}.ids"
        self._offsets = f"{name}.offsets"
        if rows:
            self._put(self._offsets, np.zeros(1, "<i8"))

    def add(self, flat: _Flat) -> None:
        """Append a chunk."""
        self._put(self._ids, flat.ids.astype(self._dtype))
        if self._offsets in self._files:
            self._put(self._offsets, (self._end + np.cumsum(flat.lengths)).astype("<i8"))
        self._end += int(flat.lengths.sum())

    def close(self) -> dict[str, str]:
        """Force everything to the disk and return the SHA-256 of each file."""
        for file, _ in self._files.values():
            DISK.fsync(file)
        return {name: total.hexdigest() for name, (_, total) in self._files.items()}

    def _put(self, name: str, array: NDArray[Any]) -> None:
        file, total = self._files[name]
        data = array.tobytes()
        total.update(data)
        DISK.write(file, data)


@dataclass(frozen=True)
class _EncodingJob:
    """How rows become ids; `cut` is None for a stream."""

    tokenizer: Tokenizer
    cut: _Cut | None
    sample: tuple[float, int] | None
    counts: Counts

    def encode(self, number: int, chunk: list[Row]) -> list[_Flat]:
        """Ids of one chunk: [target, source] or, for a stream, [target]."""
        target = self._flat(self.tokenizer.target, [row.target for row in chunk], f"{number}/0")
        if self.cut is None:
            return [_paragraphs(target, self.counts)]
        source = self._flat(self.tokenizer.source, [row.source for row in chunk], f"{number}/1")
        source, target = _pairs(source, target, self.cut, self.counts)
        return [target, _close(source)]

    def _flat(self, vocabulary: Vocabulary, texts: list[str], place: str) -> _Flat:
        """Encode texts into one array; `place` tells the draws of chunks and sides apart."""
        if self.sample is None:
            ids = vocabulary.encode(texts)
        else:
            alpha, seed = self.sample
            own = hashlib.sha256(f"{seed}/{place}".encode()).digest()[:4]
            ids = vocabulary.sample(texts, alpha=alpha, seed=int.from_bytes(own, "big"))
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum()))
        return _Flat(flat, lengths)


def _write(
    rows: Iterable[Row], job: _EncodingJob, draft: Path, report: Report | None
) -> dict[str, str]:
    """Encode chunk by chunk; return the SHA-256 of each file."""
    dtype = _dtype(job.tokenizer)
    pairs = job.cut is not None
    done = 0
    with ExitStack() as stack:
        names = ("target", "source") if pairs else ("target",)
        sides = [_Side(draft, name, dtype, pairs, stack) for name in names]
        for number, chunk in enumerate(_chunks(rows)):
            for side, flat in zip(sides, job.encode(number, chunk), strict=True):
                job.counts.unknown += int((flat.ids == UNK).sum())
                side.add(flat)
            done += len(chunk)
            if report is not None:
                report(done)
        # A plain list has no reader that counts.
        job.counts.rows = max(job.counts.rows, done)
        return {name: total for side in sides for name, total in side.close().items()}


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows in lists of bounded size."""
    chunk: list[Row] = []
    characters = 0
    for row in rows:
        chunk.append(row)
        characters += len(row.source) + len(row.target)
        if len(chunk) == CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _pairs(source: _Flat, target: _Flat, cut: _Cut, counts: Counts) -> tuple[_Flat, _Flat]:
    """Drop pairs with an empty side; drop or truncate those that are too long, EOS included."""
    empty = (source.lengths == 0) | (target.lengths == 0)
    room = cut.longest - 1
    over = ~empty & (np.maximum(source.lengths, target.lengths) > room)
    counts.empty += int(empty.sum())
    if cut.truncate:
        counts.truncated += int(over.sum())
        keep = ~empty
    else:
        counts.too_long += int(over.sum())
        keep = ~empty & ~over
    counts.kept += int(keep.sum())
    return _shorten(source, keep, room), _shorten(target, keep, room)


def _paragraphs(target: _Flat, counts: Counts) -> _Flat:
    """Drop empty paragraphs and close each other one with EOS."""
    keep = target.lengths > 0
    counts.empty += int((~keep).sum())
    counts.kept += int(keep.sum())
    return _close(_shorten(target, keep, int(target.lengths.max(initial=0))))


def _shorten(flat: _Flat, keep: NDArray[np.bool_], longest: int) -> _Flat:
    """The first `longest` ids of each kept row."""
    lengths = np.where(keep, np.minimum(flat.lengths, longest), 0)
    starts = np.cumsum(flat.lengths) - flat.lengths
    place = np.arange(len(flat.ids)) - np.repeat(starts, flat.lengths)
    return _Flat(flat.ids[place < np.repeat(lengths, flat.lengths)], lengths[keep])


def _close(flat: _Flat) -> _Flat:
    """Each row followed by EOS."""
    return _Flat(np.insert(flat.ids, np.cumsum(flat.lengths), EOS), flat.lengths + 1)


def _dtype(tokenizer: Tokenizer) -> str:
    """The smallest unsigned type for all ids of both sides."""
    return "uint16" if max(map(len, tokenizer)) < 1 << 16 else "uint32"


def _sha256(value: Any) -> str:
    """SHA-256 in hexadecimal of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _map(path: Path, dtype: str) -> NDArray[Any]:
    """A file as a read-only array; an empty file, which cannot be mapped, as an empty one."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
