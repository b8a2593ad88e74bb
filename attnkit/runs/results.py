"""Results of evaluations in a folder: decoded lines of each split, and their scores."""

import hashlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from attnkit.errors import DataError, MissingInputError
from attnkit.runs import json_files, layout
from attnkit.runs.json_files import StoredSplit
from attnkit.storage import files
from attnkit.storage.lock import exclusive

SCORES_LIMIT = 64 << 20
"""Maximum bytes of scores.json."""


class Results:
    """A folder with outputs/<split>.hyp.txt and scores.json, of a run or not; or a results file, read-only."""

    creates_folder = True
    """Whether writing creates a missing folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @cached_property
    def packed(self) -> Mapping[str, bytes] | None:
        """Files of a results file by name; None for a folder. Raises DataError if the file is damaged."""
        if layout.is_results_file(self.path) and self.path.is_file():
            from attnkit.runs.packing import read_results

            return read_results(self.path)
        return None

    def has(self, name: str) -> bool:
        """Return whether a file exists, such as outputs/test.hyp.txt."""
        if self.packed is not None:
            return name in self.packed
        return (self.path / name).exists()

    def names(self) -> Iterator[str]:
        """Yield the names of all files, without hidden files, copies of the log and leftovers."""
        if self.packed is not None:
            yield from self.packed
            return
        for path in layout.files_below(self.path):
            yield path.relative_to(self.path).as_posix()

    def open_file(self, name: str) -> BinaryIO:
        """Open a file for reading. Raises MissingInputError if there is no such regular file."""
        if self.packed is None:
            return files.open_file(self.path / name)
        if name not in self.packed:
            raise MissingInputError(f"{self.path}: has no {name}")
        return io.BytesIO(self.packed[name])

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises MissingInputError if there is no such regular file."""
        with self.open_file(name) as file, files.reading(self.path / name):
            return file.read()

    def sha256(self, name: str) -> str:
        """Return the SHA-256 of a file in hexadecimal. Raises MissingInputError if there is no such regular file."""
        if self.packed is None:
            return files.sha256_file(self.path / name)
        return hashlib.sha256(self.read(name)).hexdigest()

    def read_json(self, name: str, limit: int = files.JSON_LIMIT) -> dict[str, Any]:
        """Return the JSON object in a file, with the errors of `attnkit.storage.files.read_json`."""
        return files.read_json(self.path / name, limit, self.open_file(name))

    @property
    def writable(self) -> bool:
        """Whether results can be stored."""
        return self.packed is None and (self.creates_folder or os.access(self.path, os.W_OK))

    def output_path(self, split: str) -> Path:
        """Return the path of the decoded lines of a split: outputs/<split>.hyp.txt."""
        return self.path / layout.OUTPUTS / layout.component(f"{split}.hyp.txt")

    def statistics_path(self, split: str) -> Path:
        """Return the path of the per-sentence statistics of a split: outputs/<split>.stats.npz."""
        return self.path / layout.OUTPUTS / layout.component(f"{split}.stats.npz")

    def write_scores(self, split: str, texts: Sequence[str], scores: StoredSplit) -> None:
        """Store the decoded lines and scores of one split; concurrent evaluations wait for each other."""
        if any("\n" in text for text in texts):
            raise ValueError("a decoded line holds a line break")
        path = self.output_path(split)
        files.make_folder(path.parent, parents=self.creates_folder)
        with self.changing():
            text = "".join(f"{text}\n" for text in texts)
            earlier, _ = self.read_scores()
            self.record(layout.SCORES, None)
            files.atomic_write(path, text.encode("utf-8", "backslashreplace"))
            written = files.json_text(earlier | {split: scores.model_dump()}).encode("utf-8")
            files.atomic_write(self.path / layout.SCORES, written)
            self.record(layout.SCORES, hashlib.sha256(written).hexdigest())

    def scores(self) -> dict[str, StoredSplit]:
        """Return the scores by split, empty before an evaluation. Raises DataError if scores.json is damaged."""
        return self.read_scores()[1]

    def read_scores(self) -> tuple[dict[str, Any], dict[str, StoredSplit]]:
        """Return scores.json as written, entries of other versions included, and as `scores` returns it.

        Raises DataError as `scores`.
        """
        with self.unchanged():
            if not self.has(layout.SCORES) or not self.recorded(layout.SCORES):
                return {}, {}
            self.check_file(layout.SCORES)
            try:
                stored = self.read_json(layout.SCORES, SCORES_LIMIT)
                return stored, json_files.parse(stored, json_files.Scores, str(self.path / layout.SCORES)).root
            except DataError as error:
                raise DataError(f"{error}; replace it by `attnkit eval --fresh`") from error

    def remove_scores(self) -> None:
        """Remove the scores of all splits, because they belong to other weights or are damaged."""
        path = self.path / layout.SCORES
        if path.exists() or path.is_symlink():
            with self.changing(), files.writing(path):
                self.record(layout.SCORES, None)
                files.remove(path)

    def changing(self) -> AbstractContextManager[None]:
        """Return a context in which no other process changes these files, or reads several of them."""
        return exclusive(self.path)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Provide a context in which all files are consistent: processes that change them wait."""
        lockable = self.packed is None and os.access(self.path, os.R_OK)
        with exclusive(self.path) if lockable else nullcontext():
            self.refresh()
            yield

    def refresh(self) -> None:
        """Drop cached content; a folder without a run has none."""

    def recorded(self, name: str) -> bool:
        """Return whether a file may be used; a folder without a run does not record files, so True."""
        return True

    def check_file(self, name: str) -> bool:
        """Compare a file with its recorded SHA-256; a folder without a run records none, so False."""
        return False

    def record(self, name: str, digest: str | None) -> None:
        """Record the SHA-256 of a file, None while it is being written."""
