"""Encoded splits: tokenized once, stored as ids, memory-mapped, keyed by everything they depend on.

A complete folder holds, for each side, `<side>.ids` (little-endian uint16, or uint32 from 65,536 pieces on) and
`<side>.offsets` (int64, rows + 1), and `meta.json` with the SHA-256 of these files and the counts of rows. Pairs have
both sides: source rows end with EOS, target rows have neither BOS nor EOS. A stream (language modeling) has only
`target.ids`, each paragraph followed by EOS. The lengths for a batch plan take 4 bytes of memory per row and side.

Rows are encoded in chunks, in bounded memory; for a long corpus, by one process per core with a few chunks each.
Chunks are written in order, so that the files are the same, byte for byte, as with one process.
"""

import hashlib
import mmap
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from attnkit.data.corpus_files import file_digest
from attnkit.data.rows import Counts, Row
from attnkit.data.tokenizer import EOS, UNK, Tokenizer, Vocabulary
from attnkit.device import process_count, starting_processes
from attnkit.errors import DataError, MemoryLimitError
from attnkit.storage.cache import note_text, read_note, read_or_build
from attnkit.storage.files import DISK, sha256_file, sha256_json, write_synced

FORMAT = 2
"""Version of the folder format, part of the folders' names."""
CHUNK_ROWS, CHUNK_CHARACTERS = 10_000, 2_000_000
"""Number of rows or, with long rows, of characters that ends a chunk."""
CHUNKS_BEFORE_POOL = 10
"""Number of chunks encoded before other processes are started, which takes a second."""

Texts = tuple[list[str], list[str]]
"""Sources and targets of a chunk."""


class EncodedContent(BaseModel):
    """Content of meta.json."""

    files: dict[Literal["source.ids", "source.offsets", "target.ids", "target.offsets"], str]
    dtype: Literal["uint16", "uint32"]
    block: Annotated[int, Field(ge=0)]
    """Number of tokens in a block of a stream; 0 for pairs."""
    counts: Counts


Ids = NDArray[np.unsignedinteger[Any]]


class Ragged:
    """Rows of different lengths in one array: row i is ids[offsets[i]:offsets[i + 1]]."""

    def __init__(self, ids: Ids, offsets: NDArray[np.int64]) -> None:
        """Wrap ids [tokens] and offsets [rows + 1], mapped or in memory."""
        self.ids = ids
        self.offsets = offsets
        self.starts = offsets[:-1]

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Number of tokens in each row, with EOS if the row has it; in memory once used."""
        lengths = np.empty(len(self), np.int32)
        np.subtract(self.offsets[1:], self.starts, out=lengths, casting="unsafe")
        return lengths

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> Ids:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def last(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the last output of each of these rows: EOS."""
        return np.full(len(rows), EOS)


class LabelRows(Ragged):
    """Targets of one label each, as empty rows that end with the label as the only output."""

    def __init__(self, rows: Ragged) -> None:
        """Wrap rows of one id each."""
        super().__init__(rows.ids[:0], np.zeros(len(rows) + 1, np.int64))
        self._labels = rows.ids

    def last(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._labels[rows].astype(np.int64)


class Blocks:
    """Stream of ids cut into blocks of `length` tokens, with the interface of `Ragged`.

    A decoder reads BOS and a row and outputs the row and one more token. So row i is block i without its last token,
    which `last` returns: each token of the stream is an output exactly once, and a block counts `lengths[i] + 1`
    tokens, as a row with EOS does.
    """

    def __init__(self, ids: Ids, length: int) -> None:
        """Wrap ids [tokens]; `length` is the number of outputs in a block, at least 1."""
        self.ids = ids
        self.starts: NDArray[np.int64] = np.arange(0, len(ids), length, dtype=np.int64)
        ends = np.minimum(self.starts + length, len(ids))
        self.lengths: NDArray[np.int32] = (ends - self.starts - 1).astype(np.int32)

    def __len__(self) -> int:
        """Return the number of blocks; the last block may be shorter."""
        return len(self.lengths)

    def __getitem__(self, row: int) -> Ids:
        """Return the ids of a block without its last token."""
        return self.ids[self.starts[row] : self.starts[row] + self.lengths[row]]

    def last(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the last token of each of these blocks."""
        tokens: Ids = self.ids[self.starts[rows] + self.lengths[rows]]
        return tokens.astype(np.int64)


@dataclass(frozen=True)
class Encoded:
    """Encoded split; `source` is None for a stream, whose target is divided into blocks."""

    source: Ragged | None
    target: Ragged | Blocks
    counts: Counts
    digest: str
    """SHA-256 in hexadecimal of all ids and offsets."""
    path: Path

    def __len__(self) -> int:
        """Return the number of rows, or of blocks of a stream."""
        return len(self.target)

    @classmethod
    def open(cls, path: Path) -> "Encoded":
        """Map a complete folder. Raises DataError if a file is missing, of another format or of another SHA-256."""
        content = read_note(path / "meta.json", EncodedContent)
        if content is None:
            raise DataError(f"{path}: meta.json is missing or damaged")
        files, counts = content.files, content.counts
        dtype = {"uint16": "<u2", "uint32": "<u4"}[content.dtype]
        with ThreadPoolExecutor() as pool:  # hashing releases the GIL
            found = pool.map(file_digest, map(path.joinpath, files))
        for (name, expected), actual in zip(files.items(), found, strict=True):
            if actual != expected:
                raise DataError(f"{path / name}: content does not match its SHA-256")
        digest = sha256_json(files)
        target = _map(path / "target.ids", dtype)
        if block := content.block:
            return cls(None, Blocks(target, block), counts, digest, path)
        source = Ragged(_map(path / "source.ids", dtype), _map(path / "source.offsets", "<i8"))
        return cls(source, Ragged(target, _map(path / "target.offsets", "<i8")), counts, digest, path)


def _map(path: Path, dtype: str) -> NDArray[Any]:
    """Map a file as a read-only array; an empty file, which cannot be mapped, gives an empty array."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    mapped: Any = np.memmap(path, dtype=dtype, mode="r")
    if path.suffix == ".ids":
        # Batches read rows in random order; read-ahead would fill memory in vain.
        mapped._mmap.madvise(mmap.MADV_RANDOM)
    return np.asarray(mapped)


def _file_names(stream: bool) -> tuple[str, ...]:
    """Return the file names of a split, in the order of its digest."""
    pairs = ("target.ids", "source.ids", "target.offsets", "source.offsets")
    return pairs[:1] if stream else pairs


class _Flat(NamedTuple):
    """Rows of a chunk in one array, and the length of each row."""

    ids: NDArray[np.integer[Any]]
    lengths: NDArray[np.int64]


_EncodedChunk = tuple[dict[str, _Flat], Counts]
"""Ids by side, and the counts of the rows."""


@dataclass(frozen=True)
class RowEncoder:
    """Encoder of chunks of rows into ids, with counts; drops rows with an empty side."""

    tokenizer: Tokenizer
    max_length: int
    """Maximum number of tokens, EOS included; for a stream, the length of a block."""
    truncate: bool = False
    """Whether rows with a longer side are truncated instead of dropped."""
    stream: bool = False
    """Whether targets are paragraphs of one stream of ids, cut into blocks, instead of pairs with sources."""
    sample: tuple[float, int] | None = None
    """(alpha, seed) of subword sampling; None: the best segmentation."""

    @property
    def dtype(self) -> str:
        """Smallest unsigned type for all ids of both sides."""
        return "uint16" if max(map(len, self.tokenizer)) < 1 << 16 else "uint32"

    def encode(self, number: int, texts: Texts) -> _EncodedChunk:
        """Encode chunk `number`; of a stream only the target."""
        counts, room = Counts(rows=len(texts[1])), self.max_length - 1
        target = self._encode_side(self.tokenizer.target, texts[1], f"{number}/0")
        if self.stream:
            keep = target.lengths > 0
            sides = {"target": _append_eos(_Flat(target.ids, target.lengths[keep]))}
            counts.empty = int((~keep).sum())
        else:
            source = self._encode_side(self.tokenizer.source, texts[0], f"{number}/1")
            empty = (source.lengths == 0) | (target.lengths == 0)
            over = ~empty & (np.maximum(source.lengths, target.lengths) > room)
            keep = ~empty if self.truncate else ~(empty | over)
            target, source = _truncate(target, keep, room), _truncate(source, keep, room)
            sides = {"target": target, "source": _append_eos(source)}
            counts.empty = int(empty.sum())
            counts.truncated = int(over.sum()) if self.truncate else 0
            counts.too_long = 0 if self.truncate else int(over.sum())
        counts.kept = int(keep.sum())
        counts.unknown = sum(int((flat.ids == UNK).sum()) for flat in sides.values())
        dtype = np.dtype(self.dtype).newbyteorder("<")
        return {side: _Flat(ids.astype(dtype), n) for side, (ids, n) in sides.items()}, counts

    def _encode_side(self, vocabulary: Vocabulary, texts: list[str], name: str) -> _Flat:
        """Encode texts into one array; `name` distinguishes the random draws of chunks and sides."""
        if self.sample is None:
            ids = vocabulary.encode(texts)
        else:
            alpha, seed = self.sample
            digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4]
            ids = vocabulary.sample(texts, alpha=alpha, seed=int.from_bytes(digest, "big"))
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum()))
        return _Flat(flat, lengths)


def _truncate(flat: _Flat, keep: NDArray[np.bool_], longest: int) -> _Flat:
    """Return the first `longest` ids of each kept row."""
    lengths = np.where(keep, np.minimum(flat.lengths, longest), 0)
    starts = np.cumsum(flat.lengths) - flat.lengths
    column = np.arange(len(flat.ids)) - np.repeat(starts, flat.lengths)  # position of each id in its row
    return _Flat(flat.ids[column < np.repeat(lengths, flat.lengths)], lengths[keep])


def _append_eos(flat: _Flat) -> _Flat:
    """Append EOS to each row."""
    return _Flat(np.insert(flat.ids, np.cumsum(flat.lengths), EOS), flat.lengths + 1)


def encode(
    rows: Iterable[Row], encoder: RowEncoder, path: Path, counts: Counts, report: Callable[[int], None] | None = None
) -> Encoded:
    """Encode rows into a folder, or open the existing folder; `rows` is read only if needed.

    The counts of the result include `counts`, to which the reader of `rows` adds. `report` is called after each chunk
    with the number of rows read.

    Raises:
        OutputPathError, OutputError: The cache cannot be written.
        MemoryLimitError: A process was killed.
        AttnkitError: Reading `rows` failed.
    """

    def build(draft: Path) -> None:
        total = _write(rows, encoder, draft, report)
        total.add(replace(counts, rows=0))  # `_write` counts rows, too
        content = {
            "dtype": encoder.dtype,
            "block": encoder.max_length if encoder.stream else 0,
            "files": {name: sha256_file(draft / name) for name in _file_names(encoder.stream)},
            "counts": asdict(total),
        }
        write_synced(draft / "meta.json", note_text(content))

    return read_or_build(path, Encoded.open, build)


def _write(rows: Iterable[Row], encoder: RowEncoder, folder: Path, report: Callable[[int], None] | None) -> Counts:
    total, ends = Counts(), {"target": np.int64(0), "source": np.int64(0)}
    with ExitStack() as stack:
        names = _file_names(encoder.stream)
        files = {name: stack.enter_context(DISK.open(folder / name)) for name in names}
        for name in names[2:]:
            DISK.write(files[name], np.zeros(1, "<i8").tobytes())
        for sides, counts in stack.enter_context(closing(_encode_chunks(_chunks(rows), encoder))):
            for side, flat in sides.items():
                DISK.write(files[f"{side}.ids"], flat.ids.tobytes())
                if not encoder.stream:
                    offsets = ends[side] + np.cumsum(flat.lengths)
                    DISK.write(files[f"{side}.offsets"], offsets.astype("<i8").tobytes())
                    ends[side] += flat.lengths.sum()
            total.add(counts)
            if report is not None:
                report(total.rows)
    return total


def _chunks(rows: Iterable[Row]) -> Iterator[Texts]:
    sources, targets = list[str](), list[str]()
    characters = 0
    for row in rows:
        sources.append(row.source)
        targets.append(row.target)
        characters += len(row.source) + len(row.target)
        if len(targets) == CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield sources, targets
            sources, targets, characters = [], [], 0
    if targets:
        yield sources, targets


def _encode_chunks(chunks: Iterator[Texts], encoder: RowEncoder) -> Generator[_EncodedChunk, None, None]:
    """Yield each encoded chunk in order; after the first chunks, one process per core encodes."""
    jobs = 1 if multiprocessing.current_process().daemon else process_count()
    numbered = enumerate(chunks)
    for number, texts in islice(numbered, CHUNKS_BEFORE_POOL if jobs > 1 else None):
        yield encoder.encode(number, texts)
    if (first := next(numbered, None)) is None:
        return
    # spawn: a fork would copy the locks of torch's and sentencepiece's threads in their current state
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, spawn, initializer=_init_worker, initargs=(encoder,))
    futures = deque[Future[_EncodedChunk]]()
    try:
        for number, texts in chain([first], numbered):
            if len(futures) == jobs:
                yield futures.popleft().result()
            with starting_processes():  # the pool starts processes on demand
                futures.append(pool.submit(_encode_in_worker, number, texts))
        for future in futures:
            yield future.result()
    except BrokenProcessPool as error:
        raise MemoryLimitError(
            "a process that encodes the corpus was killed, probably because memory ran out; run the same "
            "command again with fewer --threads"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_worker_encoder: RowEncoder
"""Encoder of a process in the pool."""


def _init_worker(encoder: RowEncoder) -> None:
    """Set the encoder of a process in the pool, and exit when its parent process ends."""
    global _worker_encoder
    _worker_encoder = encoder
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with_parent() -> None:  # after kill -9 the pool leaves its processes behind
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def _encode_in_worker(number: int, texts: Texts) -> _EncodedChunk:
    return _worker_encoder.encode(number, texts)
