"""A split as ids on disk: tokenized once (`encoding`), memory-mapped, keyed by all it depends on.

A finished folder holds, for each side, `<side>.ids` (little-endian uint16, or uint32 from 65,536 pieces on) and
`<side>.offsets` (int64, rows + 1), and `meta.json` with the SHA-256 of these files and the counts of rows.  Pairs have
both sides: source rows end with EOS, target rows have neither BOS nor EOS.  A stream (language modelling) has only
`target.ids`, each paragraph followed by EOS.

The files are mapped; the lengths that a batch plan needs take 4 bytes a row and side.
"""

import mmap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from attnkit.data.corpus_files import file_digest
from attnkit.data.rows import Counts
from attnkit.data.tokenizer import EOS
from attnkit.errors import DataError
from attnkit.storage.cache import read_note
from attnkit.storage.files import sha256_json

FORMAT = 2
"""Raised when folders change; part of their names."""


class EncodedContent(BaseModel):
    """What meta.json says of a folder."""

    files: dict[Literal["source.ids", "source.offsets", "target.ids", "target.offsets"], str]
    dtype: Literal["uint16", "uint32"]
    block: Annotated[int, Field(ge=0)]
    """Tokens of a block of a stream; 0 of rows."""
    counts: Counts


Ids = NDArray[np.unsignedinteger[Any]]


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
        lengths = np.empty(len(self), np.int32)
        np.subtract(self.offsets[1:], self.starts, out=lengths, casting="unsafe")
        return lengths

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

    def __len__(self) -> int:
        """Number of rows, or of blocks of a stream."""
        return len(self.target)

    @classmethod
    def open(cls, path: Path) -> "Encoded":
        """Map a finished folder; its files are compared with their SHA-256 first.

        Raises DataError: a file is missing, damaged or of another format.
        """
        content = read_note(path / "meta.json", EncodedContent)
        if content is None:
            raise DataError(f"{path}: meta.json is missing or damaged")
        files, counts = content.files, content.counts
        dtype = {"uint16": "<u2", "uint32": "<u4"}[content.dtype]
        with ThreadPoolExecutor() as pool:  # hashing leaves Python to others
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
    """A file as a read-only array; an empty file, which cannot be mapped, as an empty one."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    mapped: Any = np.memmap(path, dtype=dtype, mode="r")
    if path.suffix == ".ids":
        # Batches take rows from everywhere; reading on behind each would fill memory for nothing.
        mapped._mmap.madvise(mmap.MADV_RANDOM)
    return np.asarray(mapped)
