"""A disk that fails on demand: the k-th operation of a save raises an error, or the process ends there."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from attnkit.storage import files
from attnkit.storage.files import Filesystem


class Killed(BaseException):
    """The simulated end of the process; no code may catch it."""


class FaultyDisk(Filesystem):
    """Counts operations, and fails at number `at` (from 1).

    `fault` is an errno, or Killed. After Killed, all operations fail; an errno is raised once, or with `lasting` from
    then on. A write that fails has written half of its bytes. With `power_loss`, Killed also undoes what was not
    synced: half of the new bytes of files, and renames.
    """

    def __init__(
        self, at: int = 0, fault: int | type[Killed] = errno.EIO, *, lasting: bool = False, power_loss: bool = False
    ) -> None:
        self.count = 0
        self._at = at
        self._fault = fault
        self._lasting = lasting or fault is Killed
        self._power_loss = power_loss
        self._sizes: dict[Path, int] = {}
        self._renames: list[tuple[Path, Path, bytes | None]] = []

    def _step(self, path: Path) -> None:
        self.count += 1
        if not self._at or self.count < self._at or (self.count > self._at and not self._lasting):
            return
        if isinstance(self._fault, int):
            raise OSError(self._fault, os.strerror(self._fault), str(path))
        if self._power_loss and self.count == self._at:
            self._lose()
        raise self._fault

    def _lose(self) -> None:
        for path, size in self._sizes.items():
            if path.exists():
                os.truncate(path, size + (path.stat().st_size - size) // 2)
        for old, new, content in reversed(self._renames):
            if new.exists():
                os.rename(new, old)
                if content is not None:
                    new.write_bytes(content)

    def mkdir(self, path: Path) -> None:
        self._step(path)
        super().mkdir(path)

    def open(self, path: Path) -> BinaryIO:
        self._step(path)
        self._sizes[path] = 0
        return open(path, "wb", buffering=0)

    def append(self, path: Path) -> BinaryIO:
        self._step(path)
        self._sizes.setdefault(path, path.stat().st_size if path.exists() else 0)
        return super().append(path)

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        if self.count + 1 == self._at:
            file.write(memoryview(data)[: len(data) // 2])
        self._step(Path(file.name))
        super().write(file, data)

    def truncate(self, file: BinaryIO, size: int) -> None:
        self._step(Path(file.name))
        super().truncate(file, size)

    def fsync(self, file: BinaryIO) -> None:
        self._step(Path(file.name))
        self._sizes.pop(Path(file.name), None)

    def fsync_path(self, path: Path) -> None:
        self._step(path)
        self._sizes.pop(path, None)
        self._renames = [entry for entry in self._renames if entry[1].parent != path]

    def rename(self, old: Path, new: Path) -> None:
        self._step(old)
        self._renames.append((old, new, new.read_bytes() if new.is_file() else None))
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._step(path)
        super().unlink(path)

    def rmtree(self, path: Path) -> None:
        self._step(path)
        super().rmtree(path)


@contextmanager
def use_disk(disk: FaultyDisk) -> Iterator[FaultyDisk]:
    """Let attnkit use this disk for all changes of files."""
    before = files.DISK.__class__, files.DISK.__dict__
    files.DISK.__class__, files.DISK.__dict__ = type(disk), disk.__dict__
    try:
        yield disk
    finally:
        files.DISK.__class__, files.DISK.__dict__ = before


FAULTS = {
    "power loss": {"fault": Killed, "power_loss": True},
    "disk full": {"fault": errno.ENOSPC},
    "disk stays full": {"fault": errno.ENOSPC, "lasting": True},
    "disk error": {"fault": errno.EIO},
    "disk stays broken": {"fault": errno.EIO, "lasting": True},
    "no permission": {"fault": errno.EACCES},
    "permission stays away": {"fault": errno.EACCES, "lasting": True},
    "kill": {"fault": Killed},
}
"""All faults of one operation, as arguments of FaultyDisk."""
