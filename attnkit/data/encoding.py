"""Writing an encoded split: by several processes, in bounded memory.

Rows are encoded in chunks.  A long corpus has a process for each core; they hold a few chunks each,
which are written in order, so that the files are, byte for byte, those that one process writes.
"""

import hashlib
import json
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnkit.data.encoded import FORMAT, Encoded
from attnkit.data.rows import Counts, Row
from attnkit.data.tokenizer import EOS, UNK, Tokenizer, Vocabulary
from attnkit.device import processes, starting_processes
from attnkit.errors import MemoryLimitError
from attnkit.storage.cache import read_or_build
from attnkit.storage.files import DISK, sha256_json, write_synced

CHUNK_ROWS, CHUNK_CHARACTERS = 10_000, 2_000_000
"""A chunk ends when it has so many rows or, with long rows, so many characters."""
ALONE = 10
"""Chunks before other processes are started: they take a second to begin."""

Texts = tuple[list[str], list[str]]
"""Sources and targets of a chunk."""
Report = Callable[[int], None]
"""Called with the number of rows read so far, after each chunk."""


def encode(
    rows: Iterable[Row],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    key: str,
    max_length: int,
    too_long: Literal["drop", "truncate"],
    sample: tuple[float, int] | None = None,
    counts: Counts | None = None,
    stream: bool = False,
    report: Report | None = None,
) -> Encoded:
    """Encode rows into folder/key, or open what is there; `rows` is read only when needed.

    Rows with an empty side are dropped.

    Args:
        rows: pairs, or paragraphs in `target` when `stream` is set.
        key: the name of the result, a hash of all that it depends on.
        max_length: in tokens, EOS included; for a stream the length of a block.
        too_long: what happens to rows with a longer side; without effect on a stream.
        sample: (alpha, seed) of subword sampling, or None for the best segmentation.
        counts: what the reader of `rows` counts into; the encoder adds to it.
        stream: one stream of target ids seen in blocks, instead of pairs.

    Raises:
        OutputPathError, OutputError: the cache cannot be written.
        MemoryLimitError: a process was killed.
        AttnkitError: whatever reading `rows` raises.
    """
    encoder = _RowEncoder(tokenizer, max_length, too_long == "truncate", stream, sample)
    total = counts or Counts()

    def build(draft: Path) -> None:
        hashes = _write(rows, encoder, draft, total, report)
        meta = {
            "format": FORMAT,
            "key": key,
            "dtype": encoder.dtype,
            "block": max_length if stream else 0,
            "files": hashes,
            "counts": asdict(total),
        }
        text = json.dumps({"sha256": sha256_json(meta), "content": meta}, indent=1)
        write_synced(draft / "meta.json", text)

    encoded, note = read_or_build(folder / key, Encoded.open, build)
    if counts is not None:
        vars(counts).update(vars(encoded.counts))
    return replace(encoded, note=note)


class _Flat(NamedTuple):
    """Rows of a chunk one after the other, and the length of each."""

    ids: NDArray[np.integer[Any]]
    lengths: NDArray[np.int64]


class _Chunk(NamedTuple):
    """A chunk as it is written, by side, and what happened to its rows."""

    sides: dict[str, _Flat]
    counts: Counts


@dataclass(frozen=True)
class _RowEncoder:
    """Turns chunks of rows into ids, and counts what happens to them."""

    tokenizer: Tokenizer
    max_length: int
    truncate: bool
    stream: bool
    sample: tuple[float, int] | None

    @property
    def dtype(self) -> str:
        """The smallest unsigned type for all ids of both sides."""
        return "uint16" if max(map(len, self.tokenizer)) < 1 << 16 else "uint32"

    def encode(self, number: int, texts: Texts) -> _Chunk:
        """Ids of chunk `number` by side; a stream has a target only."""
        counts, room = Counts(), self.max_length - 1
        target = self._flat(self.tokenizer.target, texts[1], f"{number}/0")
        if self.stream:
            keep = target.lengths > 0
            sides = {"target": _close(_Flat(target.ids, target.lengths[keep]))}
            counts.empty = int((~keep).sum())
        else:
            source = self._flat(self.tokenizer.source, texts[0], f"{number}/1")
            empty = (source.lengths == 0) | (target.lengths == 0)
            over = ~empty & (np.maximum(source.lengths, target.lengths) > room)
            keep = ~empty if self.truncate else ~(empty | over)
            target, source = _shorten(target, keep, room), _shorten(source, keep, room)
            sides = {"target": target, "source": _close(source)}
            counts.empty = int(empty.sum())
            counts.truncated = int(over.sum()) if self.truncate else 0
            counts.too_long = 0 if self.truncate else int(over.sum())
        counts.kept = int(keep.sum())
        counts.unknown = sum(int((flat.ids == UNK).sum()) for flat in sides.values())
        dtype = np.dtype(self.dtype).newbyteorder("<")
        small = {side: _Flat(ids.astype(dtype), n) for side, (ids, n) in sides.items()}
        return _Chunk(small, counts)

    def _flat(self, vocabulary: Vocabulary, texts: list[str], name: str) -> _Flat:
        """Encode texts into one array; `name` tells the draws of chunks and sides apart."""
        if self.sample is None:
            ids = vocabulary.encode(texts)
        else:
            alpha, seed = self.sample
            digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4]
            ids = vocabulary.sample(texts, alpha=alpha, seed=int.from_bytes(digest, "big"))
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum()))
        return _Flat(flat, lengths)


class _HashedFile:
    """A file that is written and hashed at once."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.file: BinaryIO = stack.enter_context(DISK.open(path))
        self.sha256 = hashlib.sha256()

    def write(self, array: NDArray[Any]) -> None:
        data = array.tobytes()
        DISK.write(self.file, data)
        self.sha256.update(data)


def _write(
    rows: Iterable[Row], encoder: _RowEncoder, folder: Path, total: Counts, report: Report | None
) -> dict[str, str]:
    """Encode rows into the files of a folder; name -> SHA-256."""
    sides = ("target",) if encoder.stream else ("target", "source")
    ends, done, own = dict.fromkeys(sides, 0), 0, Counts()
    with ExitStack() as stack:
        ids = {side: _HashedFile(folder / f"{side}.ids", stack) for side in sides}
        offsets = {
            side: _HashedFile(folder / f"{side}.offsets", stack)
            for side in (() if encoder.stream else sides)
        }
        for file in offsets.values():
            file.write(np.zeros(1, "<i8"))
        chunks = stack.enter_context(closing(_encoded(_chunks(rows), encoder)))
        for size, chunk in chunks:
            for side, flat in chunk.sides.items():
                ids[side].write(flat.ids)
                if side in offsets:
                    offsets[side].write((ends[side] + np.cumsum(flat.lengths)).astype("<i8"))
                    ends[side] += int(flat.lengths.sum())
            own.add(chunk.counts)
            done += size
            if report is not None:
                report(done)
    total.add(own)
    total.rows = max(total.rows, done)  # a plain list has no reader that counts
    hashes = {f"{side}.ids": file.sha256 for side, file in ids.items()}
    hashes |= {f"{side}.offsets": file.sha256 for side, file in offsets.items()}
    return {name: sha256.hexdigest() for name, sha256 in hashes.items()}


def _encoded(
    chunks: Iterator[Texts], encoder: _RowEncoder
) -> Generator[tuple[int, _Chunk], None, None]:
    """Rows of each chunk, and the chunk encoded, in order.

    By this process, then by one a core where there are many.
    """
    jobs = 1 if multiprocessing.current_process().daemon else processes()
    numbered = enumerate(chunks)
    for number, texts in islice(numbered, ALONE if jobs > 1 else None):
        yield len(texts[1]), encoder.encode(number, texts)
    if (first := next(numbered, None)) is None:
        return
    # spawn: a fork would copy the threads' locks of torch and sentencepiece as they stand
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(encoder,))
    waiting = deque[tuple[int, Future[_Chunk]]]()
    try:
        for number, texts in chain([first], numbered):
            if len(waiting) == jobs:
                size, future = waiting.popleft()
                yield size, future.result()
            waiting.append((len(texts[1]), _submit(pool, number, texts)))
        for size, future in waiting:
            yield size, future.result()
    except BrokenProcessPool as error:
        raise MemoryLimitError(
            "a process that encodes the corpus was killed, as the system does when memory runs "
            "out; run the same command again with fewer --threads"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, number: int, texts: Texts) -> "Future[_Chunk]":
    """Have a chunk encoded, by a process that is started where there are too few."""
    with starting_processes():
        return pool.submit(_encode, number, texts)


def _begin(encoder: _RowEncoder) -> None:
    """Keep the encoder in a process of the pool, and end this when the one that started it ends."""
    global _encoder
    _encoder = encoder
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:  # the pool itself leaves its processes behind after kill -9
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _encode(number: int, texts: Texts) -> _Chunk:
    return _encoder.encode(number, texts)


_encoder: _RowEncoder
"""That of this process, in a pool."""


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


def _shorten(flat: _Flat, keep: NDArray[np.bool_], longest: int) -> _Flat:
    """The first `longest` ids of each kept row."""
    lengths = np.where(keep, np.minimum(flat.lengths, longest), 0)
    starts = np.cumsum(flat.lengths) - flat.lengths
    column = np.arange(len(flat.ids)) - np.repeat(starts, flat.lengths)
    return _Flat(flat.ids[column < np.repeat(lengths, flat.lengths)], lengths[keep])


def _close(flat: _Flat) -> _Flat:
    return _Flat(np.insert(flat.ids, np.cumsum(flat.lengths), EOS), flat.lengths + 1)
