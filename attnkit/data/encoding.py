"""Writing an encoded split: by several processes, in bounded memory, and resumed after a kill.

Rows are encoded in chunks.  A long corpus has a process for each core; they hold a few chunks each,
which are written in order, so that the files are, byte for byte, those that one process writes.

A folder that is being written is `<key>.partial`.  After each shard, of `SHARD` chunks, the files
are forced to the disk, and a line in `shards.jsonl` tells how far they are, with the SHA-256 of all
up to there.  What was interrupted goes on behind the last shard that is whole.
"""

import hashlib
import json
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice, takewhile
from multiprocessing import current_process, get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnkit.data.encoded import FORMAT, Encoded
from attnkit.data.rows import Counts, Row
from attnkit.data.tokenizer import EOS, UNK, Tokenizer, Vocabulary
from attnkit.device import processes
from attnkit.errors import AttnkitError, DataError, MemoryLimitError
from attnkit.storage.cache import complete
from attnkit.storage.files import DISK, atomic_write, remove, sha256_json, write_synced

CHUNK_ROWS, CHUNK_CHARACTERS = 10_000, 2_000_000
"""A chunk ends when it has so many rows or, with long rows, so many characters."""
SHARD = 50
"""Chunks of a shard."""
ALONE = 10
"""Chunks before other processes are started: they take a second to begin."""

PARTIAL = ".partial"
SHARDS = "shards.jsonl"

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
        key: the name of the result, a hash of all that it depends on.
        max_length: in tokens, EOS included; for a stream the length of a block.
        too_long: "drop" or "truncate"; without effect on a stream.
        sample: (alpha, seed) of subword sampling, or None for the best segmentation.
        counts: what the reader of `rows` counts into; the encoder adds to it.
        stream: one stream of target ids seen in blocks, instead of pairs.
        report: called after each chunk.

    Raises:
        OutputPathError, OutputError: the cache cannot be written.
        MemoryLimitError: a process was killed.
        AttnkitError: whatever reading `rows` raises.
    """
    if too_long not in ("drop", "truncate"):
        raise ValueError(f"too_long must be drop or truncate, is {too_long!r}")
    encoder = _RowEncoder(tokenizer, max_length, too_long == "truncate", stream, sample)
    total, kept = counts or Counts(), list[int]()

    def build(draft: Path) -> None:
        try:
            kept.append(_fill(draft, key, rows, encoder, total, report))
        except BaseException as error:
            if isinstance(error, DataError) or not (draft / SHARDS).exists():
                with suppress(OSError):
                    remove(draft)  # no later call could go on with it
            raise

    encoded, note = complete(folder / key, Encoded.open, build, folder / f"{key}{PARTIAL}")
    if counts is not None:
        vars(counts).update(vars(encoded.counts))
    if any(kept):
        note = f"{kept[0]:,} rows were encoded by an earlier command, which was interrupted"
    return replace(encoded, note=note)


def _fill(
    draft: Path,
    key: str,
    rows: Iterable[Row],
    encoder: "_RowEncoder",
    total: Counts,
    report: Report | None,
) -> int:
    """Write all files of a split; returns the number of rows that were there."""
    with ExitStack() as stack:
        files = _GrowingFolder(draft, key, encoder, stack)
        _write(rows, encoder, files, total, report)
    meta = {
        "format": FORMAT,
        "key": key,
        "dtype": encoder.dtype,
        "block": encoder.max_length if encoder.stream else 0,
        "files": files.hashes(),
        "counts": asdict(total),
    }
    text = json.dumps({"sha256": sha256_json(meta), "content": meta}, indent=1)
    write_synced(draft / "meta.json", text.encode())
    if (draft / SHARDS).exists():
        DISK.unlink(draft / SHARDS)
    return files.kept.rows


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

    @property
    def sides(self) -> tuple[str, ...]:
        return ("target",) if self.stream else ("target", "source")

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


class _Shard(NamedTuple):
    """A line of `shards.jsonl`: how far everything is when a shard ends."""

    key: str = ""
    chunks: int = 0
    rows: int = 0
    counts: dict[str, int] = {}
    """Those of the encoder."""
    files: dict[str, tuple[int, str]] = {}
    """Bytes of each file, and their SHA-256."""


class _GrowingFile:
    """A file that is written at its end, hashed meanwhile."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self.file = stack.enter_context(DISK.append(path))
        self.sha256, self.size = hashlib.sha256(), 0

    def write(self, array: NDArray[Any]) -> None:
        data = array.tobytes()
        DISK.write(self.file, data)
        self.sha256.update(data)
        self.size += len(data)

    def hash_to(self, size: int) -> Any:
        """The hash of the first `size` bytes, of which `self.size` are in `self.sha256`."""
        total = self.sha256.copy()
        with open(self.path, "rb") as file:
            file.seek(self.size)
            while block := file.read(max(0, min(1 << 20, size - file.tell()))):
                total.update(block)
        return total


class _GrowingFolder:
    """The files of a folder that is being written; it goes on behind the shards that are whole."""

    def __init__(self, folder: Path, key: str, encoder: _RowEncoder, stack: ExitStack) -> None:
        self._index, self._key, self._sides = folder / SHARDS, key, encoder.sides
        names = [f"{side}.ids" for side in encoder.sides]
        names += [] if encoder.stream else [f"{side}.offsets" for side in encoder.sides]
        self._files = {name: _GrowingFile(folder / name, stack) for name in names}
        self._lines: list[str] = []
        self.kept = _Shard()
        """The last whole shard."""
        if self._index.exists():
            lines = self._index.read_text("utf-8", "replace").split("\n")
            self._lines = list(takewhile(self._keep, lines))
        for file in self._files.values():
            DISK.truncate(file.file, file.size)
        width = np.dtype(encoder.dtype).itemsize
        self._ends = {side: self._files[f"{side}.ids"].size // width for side in self._sides}
        for name, file in self._files.items():
            if name.endswith(".offsets") and not file.size:
                file.write(np.zeros(1, "<i8"))

    def _keep(self, line: str) -> bool:
        """Whether a line tells of a shard of this key whose files are whole; then it is kept."""
        try:
            shard = _Shard(**json.loads(line))
            Counts(**shard.counts)
            sizes, hashes = zip(*(shard.files[name] for name in self._files), strict=True)
            reached = [
                file.hash_to(size) for file, size in zip(self._files.values(), sizes, strict=True)
            ]
        except (ValueError, TypeError, KeyError):
            return False
        if shard.key != self._key or hashes != tuple(total.hexdigest() for total in reached):
            return False
        self.kept = shard
        for file, size, total in zip(self._files.values(), sizes, reached, strict=True):
            file.size, file.sha256 = size, total
        return True

    def write(self, chunk: _Chunk) -> None:
        for side, flat in chunk.sides.items():
            self._files[f"{side}.ids"].write(flat.ids)
            if f"{side}.offsets" in self._files:
                offsets = self._ends[side] + np.cumsum(flat.lengths)
                self._files[f"{side}.offsets"].write(offsets.astype("<i8"))
                self._ends[side] += int(flat.lengths.sum())

    def end_shard(self, chunks: int, rows: int, counts: Counts) -> None:
        """All that was written so far is to last."""
        self.sync()
        sizes = {name: (file.size, file.sha256.hexdigest()) for name, file in self._files.items()}
        shard = _Shard(self._key, chunks, rows, asdict(counts), sizes)
        self._lines.append(json.dumps(shard._asdict()))
        atomic_write(self._index, "\n".join(self._lines))

    def sync(self) -> None:
        """Force the files to the disk."""
        for file in self._files.values():
            DISK.fsync(file.file)

    def hashes(self) -> dict[str, str]:
        """SHA-256 of each file."""
        return {name: file.sha256.hexdigest() for name, file in self._files.items()}


def _write(
    rows: Iterable[Row],
    encoder: _RowEncoder,
    files: _GrowingFolder,
    total: Counts,
    report: Report | None,
) -> None:
    """Encode the chunks that are not in a shard yet, and write them."""
    own, done, sizes = Counts(**files.kept.counts), 0, deque[int]()

    def missing() -> Iterator[tuple[int, Texts]]:
        nonlocal done
        for number, texts in enumerate(_chunks(rows)):
            if number >= files.kept.chunks:
                sizes.append(len(texts[1]))
                yield number, texts
                continue
            done += len(texts[1])
            if report is not None:
                report(done)

    with closing(_encoded(missing(), encoder)) as chunks:
        for number, chunk in enumerate(chunks, files.kept.chunks + 1):
            files.write(chunk)
            own.add(chunk.counts)
            done += sizes.popleft()
            if number % SHARD == 0:
                files.end_shard(number, done, own)
            if report is not None:
                report(done)
    files.sync()
    total.add(own)
    # A plain list has no reader that counts.
    total.rows = max(total.rows, done)


def _encoded(
    chunks: Iterator[tuple[int, Texts]], encoder: _RowEncoder
) -> Generator[_Chunk, None, None]:
    """Chunks encoded, in order: by this process, then by one a core where there are many."""
    jobs = 1 if current_process().daemon else processes()  # a daemon may not start processes
    for number, texts in islice(chunks, ALONE if jobs > 1 else None):
        yield encoder.encode(number, texts)
    yield from _by_processes(chunks, encoder, jobs)


def _by_processes(
    chunks: Iterator[tuple[int, Texts]], encoder: _RowEncoder, jobs: int
) -> Generator[_Chunk, None, None]:
    """Chunks encoded by so many processes, in order: each has one of them."""
    busy = deque[tuple[BaseProcess, Connection]]()
    try:
        for task in chunks:
            if len(busy) < jobs:
                busy.append(_start(encoder))
                busy[-1][1].send(task)
                continue
            chunk = _receive(busy[0][1])
            busy[0][1].send(task)
            busy.rotate(-1)
            yield chunk
        while busy:
            yield _receive(busy[0][1])
            _end(*busy.popleft())
    except (EOFError, OSError) as error:
        raise MemoryLimitError(
            "a process that encodes the corpus was killed, as the system does when memory runs "
            "out; run the same command again to go on, with fewer --threads"
        ) from error
    finally:
        for worker in busy:
            _end(*worker)


def _start(encoder: _RowEncoder) -> tuple[BaseProcess, Connection]:
    """A process that encodes; Ctrl-C, which a terminal sends to all, is left to this one."""
    context = get_context("spawn")
    resource_tracker.ensure_running()  # later it would unblock the signal
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, encoder), daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return process, ours


def _end(process: BaseProcess, connection: Connection) -> None:
    connection.close()
    process.kill()
    process.join()


def _receive(connection: Connection) -> _Chunk:
    """The next chunk of a process, or the error that it met."""
    answer: _Chunk | Exception = connection.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _serve(connection: Connection, encoder: _RowEncoder) -> None:
    """Encode what comes until the other process closes the connection, or ends."""
    with suppress(EOFError, OSError):
        while True:
            task = connection.recv()
            try:
                connection.send(encoder.encode(*task))
            except AttnkitError as error:
                connection.send(error)


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
