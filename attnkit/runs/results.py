"""What evaluations leave in a folder: decoded lines of each split, and their scores."""

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
"""Bytes of scores.json that are read, at most."""


class Results:
    """A folder of outputs/<split>.hyp.txt and scores.json: a run, or a folder without a run.

    Or a results file, which is opened like a run's folder, and never written.
    """

    may_be_made = True
    """Whether writing makes the folder, should it be missing."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @cached_property
    def packed(self) -> Mapping[str, bytes] | None:
        """The files in a results file by name; None of a folder.

        Raises DataError: it is damaged.
        """
        if layout.is_results_file(self.path) and self.path.is_file():
            from attnkit.runs.packing import read_results

            return read_results(self.path)
        return None

    def has(self, name: str) -> bool:
        """Whether there is a file of this name, such as outputs/test.hyp.txt."""
        if self.packed is not None:
            return name in self.packed
        return (self.path / name).exists()

    def names(self) -> Iterator[str]:
        """All its files, but for hidden ones, copies of the log and leftovers."""
        if self.packed is not None:
            yield from self.packed
            return
        for path in layout.files_below(self.path):
            yield path.relative_to(self.path).as_posix()

    def open_file(self, name: str) -> BinaryIO:
        """One of its files, for reading.

        Raises MissingInputError: there is no such regular file.
        """
        if self.packed is None:
            return files.open_file(self.path / name)
        if name not in self.packed:
            raise MissingInputError(f"{self.path}: {name} is not in it")
        return io.BytesIO(self.packed[name])

    def read(self, name: str) -> bytes:
        """The content of one of its files; raises as `open_file`."""
        with self.open_file(name) as file, files.reading(self.path / name):
            return file.read()

    def sha256(self, name: str) -> str:
        """SHA-256 of one of its files in hexadecimal; raises as `open_file`."""
        if self.packed is None:
            return files.sha256_file(self.path / name)
        return hashlib.sha256(self.read(name)).hexdigest()

    def read_json(self, name: str, limit: int = files.JSON_LIMIT) -> dict[str, Any]:
        """One of its files, as `attnkit.storage.files.read_json` reads it."""
        return files.read_json(self.path / name, limit, self.open_file(name))

    @property
    def writable(self) -> bool:
        """Whether results can be stored."""
        return self.packed is None and (self.may_be_made or os.access(self.path, os.W_OK))

    def output_path(self, split: str) -> Path:
        """The file of decoded lines of a split: outputs/<split>.hyp.txt."""
        return self.path / layout.OUTPUTS / layout.component(f"{split}.hyp.txt")

    def statistics_path(self, split: str) -> Path:
        """The file of per-sentence statistics beside the outputs."""
        return self.path / layout.OUTPUTS / layout.component(f"{split}.stats.npz")

    def write_scores(self, split: str, texts: Sequence[str], scores: StoredSplit) -> None:
        """Store decoded lines and their scores; other splits' scores stay as they are.

        Two evaluations at once wait for each other.
        """
        if any("\n" in text for text in texts):
            raise ValueError("a decoded line holds a line break")
        path = self.output_path(split)
        files.make_folder(path.parent, parents=self.may_be_made)
        with self.changing():
            text = "".join(f"{text}\n" for text in texts)
            earlier, _ = self.read_scores()
            self.record(layout.SCORES, None)
            files.atomic_write(path, text.encode("utf-8", "backslashreplace"))
            written = files.json_text(earlier | {split: scores.model_dump()}).encode("utf-8")
            files.atomic_write(self.path / layout.SCORES, written)
            self.record(layout.SCORES, hashlib.sha256(written).hexdigest())

    def scores(self) -> dict[str, StoredSplit]:
        """Scores by split; empty before the first evaluation.

        Raises DataError: scores.json is damaged; scoring again with force repairs it.
        """
        return self.read_scores()[1]

    def read_scores(self) -> tuple[dict[str, Any], dict[str, StoredSplit]]:
        """scores.json as it was written, with entries of other versions, and as `scores`; raises as that."""
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
        """Forget the scores of all splits: of other weights, or in a damaged file."""
        path = self.path / layout.SCORES
        if path.exists() or path.is_symlink():
            with self.changing(), files.writing(path):
                self.record(layout.SCORES, None)
                files.remove(path)

    def changing(self) -> AbstractContextManager[None]:
        """Inside, no other process changes these files or reads several of them."""
        return exclusive(self.path)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Inside, all files belong together: who changes them waits."""
        alone = self.packed is None and os.access(self.path, os.R_OK)
        with exclusive(self.path) if alone else nullcontext():
            self.refresh()
            yield

    def refresh(self) -> None:
        """Forget what was read before; a folder without a run remembers nothing."""

    def recorded(self, name: str) -> bool:
        """Whether a file may be used; a folder without a run records none."""
        return True

    def check_file(self, name: str) -> bool:
        """Compare a file with its recorded SHA-256; a folder without a run records none."""
        return False

    def record(self, name: str, digest: str | None) -> None:
        """Note the SHA-256 of a file, None while it is being written."""
