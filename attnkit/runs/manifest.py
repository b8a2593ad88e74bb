"""The manifest of a run: manifest.json, what is known of it and the hashes of its files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnkit.errors import DataError
from attnkit.storage import files
from attnkit.storage.files import DISK, Filesystem


class Manifest:
    """Entries by key; `files` holds the SHA-256 of files beside it, null while one is written."""

    def __init__(self, path: Path, fs: Filesystem = DISK) -> None:
        self.path = path
        self._fs = fs
        self._entries: dict[str, Any] | None = None

    @property
    def entries(self) -> Mapping[str, Any]:
        """All entries, read when first wanted.

        Raises:
            MissingInputError, DataError: the file is missing or damaged.
        """
        if self._entries is None:
            self._entries = files.read_json(self.path)
        return self._entries

    def entry(self, key: str, kind: type) -> Any:
        """One entry of the right kind.

        Raises:
            DataError: it is missing or of another kind.
        """
        value = self.entries.get(key)
        if not isinstance(value, kind):
            raise DataError(f"{self.path}: {key} must be {kind.__name__}, is {value!r:.60}")
        return value

    def write(self, entries: Mapping[str, Any]) -> None:
        """Replace the whole manifest."""
        files.atomic_write(self.path, json_text(entries), self._fs)
        self._entries = dict(entries)

    def update(self, fields: Mapping[str, Any]) -> None:
        """Set entries; an object is merged into the one that is there."""
        entries = dict(self.entries)
        for key, value in fields.items():
            old = entries.get(key)
            if isinstance(old, Mapping) and isinstance(value, Mapping):
                entries[key] = {**old, **value}
            else:
                entries[key] = value
        self.write(entries)

    def forget(self) -> None:
        """Read the file afresh when it is next wanted."""
        self._entries = None

    def record(self, sums: Mapping[str, str | None]) -> None:
        """Note the SHA-256 of files; None says that one is being written."""
        self.update({"files": sums})

    def verify(self, name: str) -> bool:
        """Compare a file with its noted SHA-256; False where none is noted.

        Raises:
            DataError: they differ.
            MissingInputError: the file is missing.
        """
        expected = self.entry("files", dict).get(name)
        if not isinstance(expected, str):
            return False
        path = self.path.with_name(name)
        if files.sha256_file(path) != expected:
            raise DataError(
                f"{path}: is not the file that was trained (its SHA-256 differs from "
                f"{self.path.name}); restore it, or train again with --fresh"
            )
        return True


def json_text(value: Any) -> str:
    """JSON text for a file that people read too."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
