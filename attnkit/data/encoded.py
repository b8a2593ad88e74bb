"""A split as ids on disk: tokenized once, memory-mapped, keyed by all that it depends on.

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
from dataclasses import asdict, dataclass, replace
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
from attnkit.storage.files import DISK, read_json, sha256_file, sha256_json, write_synced

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
        """Tokens of each row, EOS included where the row has one; in memory once used."""
        return np.diff(self.offsets).astype(np.int32)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> Ids:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def last(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last output of each of these rows: EOS."""
        return np.full(len(rows), EOS)


class LabelRows(Ragged):
    """Targets of one label each, seen as empty rows whose end is the label: the only output."""

    def __init__(self, rows: Ragged) -> None:
        """Rows of one id."""
        super().__init__(rows.ids[:0], np.zeros(len(rows) + 1, np.int64))
        self._labels = rows.ids

    def last(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The labels of these rows."""
        return self._labels[rows].astype(np.int64)


class Blocks:
    """A stream of ids cut in blocks of `length` tokens, seen as rows like those of `Ragged`.

    A decoder reads BOS and a row and outputs the row and one more token.  So row i is block i
    without its last token, and `last` gives that token: every token of the stream is an output
    exactly once, and a block counts `lengths[i] + 1` tokens, just as a row with EOS does.
    """

    def __init__(self, ids: Ids, length: int) -> None:
        """ids [tokens]; `length` is the number of outputs of a block, at least 1."""
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
            if sha256_json(content) != meta["sha256"]:
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
        digest = sha256_json(files)
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
        key: the name of the result, a hash of all that it depends on; not checked here.
        max_length: in tokens, EOS included; for a stream the length of a block.
        too_long: "drop" or "truncate"; without effect on a stream.
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
    truncate = too_long == "truncate"
    encoder = _RowEncoder(tokenizer, max_length, truncate, stream, sample, counts or Counts())

    def build(draft: Path) -> None:
        files = _write(rows, encoder, draft, report)
        meta = {
            "format": FORMAT,
            "dtype": encoder.dtype,
            "block": max_length if stream else 0,
            "files": files,
            "counts": asdict(encoder.counts),
        }
        text = json.dumps({"sha256": sha256_json(meta), "content": meta}, indent=1)
        write_synced(draft / "meta.json", text.encode())

    encoded, note = complete(folder / key, Encoded.open, build)
    if counts is not None:
        vars(counts).update(vars(encoded.counts))
    return replace(encoded, note=note)


class _Flat(NamedTuple):
    """Rows of a chunk one after the other, and the length of each."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class _RowEncoder:
    """Turns chunks of rows into ids, and counts what happens to them."""

    tokenizer: Tokenizer
    max_length: int
    truncate: bool
    stream: bool
    sample: tuple[float, int] | None
    counts: Counts

    @property
    def dtype(self) -> str:
        """The smallest unsigned type for all ids of both sides."""
        return "uint16" if max(map(len, self.tokenizer)) < 1 << 16 else "uint32"

    def encode(self, number: int, chunk: list[Row]) -> dict[str, _Flat]:
        """Ids of chunk `number` by side; a stream has a target only."""
        counts, room = self.counts, self.max_length - 1
        target = self._flat(self.tokenizer.target, [row.target for row in chunk], f"{number}/0")
        if self.stream:
            keep = target.lengths > 0
            sides = {"target": _close(_Flat(target.ids, target.lengths[keep]))}
            counts.empty += int((~keep).sum())
        else:
            source = self._flat(self.tokenizer.source, [row.source for row in chunk], f"{number}/1")
            empty = (source.lengths == 0) | (target.lengths == 0)
            over = ~empty & (np.maximum(source.lengths, target.lengths) > room)
            keep = ~empty if self.truncate else ~(empty | over)
            target, source = _shorten(target, keep, room), _shorten(source, keep, room)
            sides = {"target": target, "source": _close(source)}
            counts.empty += int(empty.sum())
            counts.truncated += int(over.sum()) if self.truncate else 0
            counts.too_long += 0 if self.truncate else int(over.sum())
        counts.kept += int(keep.sum())
        counts.unknown += sum(int((flat.ids == UNK).sum()) for flat in sides.values())
        return sides

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
    """A file of arrays, hashed while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.sha256 = file, hashlib.sha256()

    def write(self, array: NDArray[Any]) -> None:
        data = array.tobytes()
        self.sha256.update(data)
        DISK.write(self.file, data)


def _write(
    rows: Iterable[Row], encoder: _RowEncoder, draft: Path, report: Report | None
) -> dict[str, str]:
    """Encode chunk by chunk; return the SHA-256 of each file."""
    dtype = np.dtype(encoder.dtype).newbyteorder("<")
    names = ["target.ids", "target.offsets", "source.ids", "source.offsets"]
    ends = {"target": 0, "source": 0}
    done = 0
    with ExitStack() as stack:
        files = {
            name: _HashedFile(stack.enter_context(DISK.open(draft / name)))
            for name in (names[:1] if encoder.stream else names)
        }
        for name in () if encoder.stream else ("target.offsets", "source.offsets"):
            files[name].write(np.zeros(1, "<i8"))
        for number, chunk in enumerate(_chunks(rows)):
            for side, flat in encoder.encode(number, chunk).items():
                files[f"{side}.ids"].write(flat.ids.astype(dtype))
                if not encoder.stream:
                    offsets = ends[side] + np.cumsum(flat.lengths)
                    files[f"{side}.offsets"].write(offsets.astype("<i8"))
                    ends[side] += int(flat.lengths.sum())
            done += len(chunk)
            if report is not None:
                report(done)
        for written in files.values():
            DISK.fsync(written.file)
    # A plain list has no reader that counts.
    encoder.counts.rows = max(encoder.counts.rows, done)
    return {name: written.sha256.hexdigest() for name, written in files.items()}


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
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


def _shorten(flat: _Flat, keep: NDArray[np.bool_], longest: int) -> _Flat:
    """The first `longest` ids of each kept row."""
    lengths = np.where(keep, np.minimum(flat.lengths, longest), 0)
    starts = np.cumsum(flat.lengths) - flat.lengths
    column = np.arange(len(flat.ids)) - np.repeat(starts, flat.lengths)
    return _Flat(flat.ids[column < np.repeat(lengths, flat.lengths)], lengths[keep])


def _close(flat: _Flat) -> _Flat:
    return _Flat(np.insert(flat.ids, np.cumsum(flat.lengths), EOS), flat.lengths + 1)


def _map(path: Path, dtype: str) -> NDArray[Any]:
    """A file as a read-only array; an empty file, which cannot be mapped, as an empty one."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
