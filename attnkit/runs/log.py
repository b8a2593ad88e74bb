"""The training log: metrics.jsonl, one JSON object per line."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attnkit.errors import DataError
from attnkit.runs.json_files import Schema, parse
from attnkit.storage import files
from attnkit.storage.files import DISK

WALL_CLOCK = ("seconds", "_per_second", "_bytes")
"""Suffixes of the keys whose values differ between repetitions of a training."""
_EMPTY = hashlib.sha256().hexdigest()


class Validation(Schema):
    """Results of a validation; None for values that are not finite."""

    monitor: str
    value: float | None
    """Value of the monitor."""
    valid_loss: float | None


class Log:
    """A file of records that grows line by line and can be truncated to a step.

    Each line is written to the file immediately, so that the log can be watched; `flush` syncs the file to disk.
    """

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        """Open the log at a path, or with the `content` from a results file, where the path is only its name."""
        self.path, self._content = path, content
        self._written: Any = None  # SHA-256 of the content this process found intact and wrote

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record; call it for all records of a step before the checkpoint of the step is saved.

        `step` must be an integer. Numbers that JSON does not have (NaN, infinities) become null. Keys of measured time
        and memory end as in `WALL_CLOCK`; all other values must be the same in every repetition of the training.
        """
        if type(record.get("step")) is not int:
            raise TypeError(f"a log record needs a whole-number step: {record!r:.80}")
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        line = (json.dumps(finite, allow_nan=False) + "\n").encode("utf-8")
        if self._written is None:
            self._written = hashlib.sha256(self.content())
        with files.writing(self.path), DISK.append(self.path) as file:
            DISK.write(file, line)
        self._written.update(line)

    def flush(self) -> None:
        """Sync the log to disk, as saving a checkpoint does first."""
        with files.writing(self.path):
            if self.path.exists():
                with DISK.append(self.path) as file:
                    DISK.fsync(file)
                DISK.fsync_path(self.path.parent)

    def records(self) -> list[dict[str, Any]]:
        """Return all records but an incomplete last line. Raises DataError, naming the line, if one is damaged."""
        return [record for record, _ in self._lines()]

    def validation(self, step: int) -> Validation | None:
        """Return the last validation at a step, or None. Raises DataError if a line or its value is damaged."""
        found = [record for record in self.records() if record["step"] == step and "value" in record]
        return parse(found[-1], Validation, f"{self.path}: the validation at step {step}") if found else None

    def content(self) -> bytes:
        """Return the whole file; empty if it does not exist."""
        if self._content is not None:
            return self._content
        if not self.path.exists():
            return b""
        with files.open_file(self.path) as file, files.reading(self.path):
            return file.read()

    def sha256(self) -> str | None:
        """Return the SHA-256 of the log as this process wrote it, otherwise of the file; None without a log."""
        exists = self.path.exists()
        if self._written is None:
            return files.sha256_file(self.path) if exists else None
        digest = str(self._written.hexdigest())
        return digest if exists or digest != _EMPTY else None

    def until(self, step: int | None) -> tuple[int, "hashlib._Hash"]:
        """Return bytes and SHA-256 of the records up to a step (None: none). Raises DataError if one is damaged."""
        size = 0
        if step is not None:
            for record, end in self._lines():
                if record["step"] > step:
                    break
                size = end
        return size, hashlib.sha256(self.content()[:size])

    def truncate(self, step: int | None, sha256: str | None = None) -> None:
        """Drop the records after `step` (None: all), before a resumed run appends new ones.

        Raises:
            DataError: If a line up to the step is damaged, or these lines do not have the given SHA-256.
            MissingInputError: If the log is not a regular file.
        """
        exists = self.path.exists()
        if exists:
            files.check_file(self.path)
        size, digest = self.until(step)
        if sha256 not in (None, digest.hexdigest()):
            raise DataError(
                f"{self.path}: the records until step {step} were changed (their SHA-256 differs from the "
                "checkpoint's); restore the file, or start over with --fresh"
            )
        if exists:
            with files.writing(self.path), DISK.append(self.path) as file:
                DISK.truncate(file, size)
                DISK.fsync(file)
        self._written = digest

    def digest(self) -> str:
        """Return the SHA-256 of everything but wall-clock values: equal for resumed and uninterrupted runs."""
        digest = hashlib.sha256()
        for record in self.records():
            repeatable = {k: value for k, value in record.items() if not k.endswith(WALL_CLOCK)}
            digest.update(json.dumps(repeatable, sort_keys=True).encode("utf-8") + b"\n")
        return digest.hexdigest()

    def _lines(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield each record with the offset of the end of its line."""
        end = 0
        for number, line in enumerate(self.content().split(b"\n")[:-1], start=1):
            where = f"{self.path}:{number}"
            end += len(line) + 1
            try:
                record = files.parse_object(line, where)
                if type(record.get("step")) is not int:
                    raise DataError(f"{where}: has no whole-number step")
            except DataError as error:
                raise DataError(f"{error}; remove the line and run again") from error
            yield record, end
