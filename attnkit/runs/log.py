"""The log of a training: metrics.jsonl, one JSON object a line."""

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
"""Ends of the keys whose values differ from one repetition of a training to the next."""
_NOTHING = hashlib.sha256().hexdigest()


class Validation(Schema):
    """What a validation measured; None where that is not a number."""

    monitor: str
    value: float | None
    """Of the monitor."""
    valid_loss: float | None


class Log:
    """A file of records that grows line by line and can be cut back to a step.

    Lines reach the file at once, so that it can be watched, and the disk with each `flush`.
    """

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        """`content` is that of a log in a results file, where `path` is only its name."""
        self.path, self._content = path, content
        self._written: Any = None  # SHA-256 of what this process wrote and found whole

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record; log all that belongs to a step before its checkpoint is saved.

        `step` must be a whole number.  Numbers that JSON does not have (NaN, infinities) become
        null.  Keys of measured time and memory end as in `WALL_CLOCK`; the values of all others
        must be the same in every repetition of the training.
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
        """Force the log to the disk; saving a checkpoint does so first."""
        with files.writing(self.path):
            if self.path.exists():
                with DISK.append(self.path) as file:
                    DISK.fsync(file)
                DISK.fsync_path(self.path.parent)

    def records(self) -> list[dict[str, Any]]:
        """All records; a last line without its end, still being written or torn, is omitted.

        Raises DataError: a line is not a record; says which.
        """
        return [record for record, _ in self._lines()]

    def validation(self, step: int) -> Validation | None:
        """The last record of a validation after a step, such as that of the chosen weights.

        Raises DataError: as `records`, or its value is no number.
        """
        found = [one for one in self.records() if one["step"] == step and "value" in one]
        return parse(found[-1], Validation, f"{self.path}: the validation at step {step}") if found else None

    def content(self) -> bytes:
        """The whole file; empty where there is none yet."""
        if self._content is not None:
            return self._content
        if not self.path.exists():
            return b""
        with files.open_file(self.path) as file, files.reading(self.path):
            return file.read()

    def sha256(self) -> str | None:
        """SHA-256 of the whole file as it was written here, else as it is; None without one."""
        there = self.path.exists()
        if self._written is None:
            return files.sha256_file(self.path) if there else None
        digest = str(self._written.hexdigest())
        return digest if there or digest != _NOTHING else None

    def until(self, step: int | None) -> tuple[int, "hashlib._Hash"]:
        """Bytes and SHA-256 of the records until a step; of none with None.

        Raises DataError: a line at or before that step is damaged.
        """
        size = 0
        if step is not None:
            for record, end in self._lines():
                if record["step"] > step:
                    break
                size = end
        return size, hashlib.sha256(self.content()[:size])

    def truncate(self, step: int | None, sha256: str | None = None) -> None:
        """Drop the records after `step`, before a resumed run adds new ones; with None, all.

        Raises DataError: a line at or before that step is damaged, or these lines have another
        SHA-256 than they must; or it is no regular file.
        """
        there = self.path.exists()
        if there:
            files.check_file(self.path)
        size, kept = self.until(step)
        if sha256 not in (None, kept.hexdigest()):
            raise DataError(
                f"{self.path}: the records until step {step} are not those that were written (their SHA-256 differs "
                "from the checkpoint's); restore them, or start over with --fresh"
            )
        if there:
            with files.writing(self.path), DISK.append(self.path) as file:
                DISK.truncate(file, size)
                DISK.fsync(file)
        self._written = kept

    def digest(self) -> str:
        """SHA-256 of all but the wall-clock values: equal for a resumed and an unbroken run."""
        digest = hashlib.sha256()
        for record in self.records():
            repeatable = {k: value for k, value in record.items() if not k.endswith(WALL_CLOCK)}
            digest.update(json.dumps(repeatable, sort_keys=True).encode("utf-8") + b"\n")
        return digest.hexdigest()

    def _lines(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Records, each with the offset where its line ends."""
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
