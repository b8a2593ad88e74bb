"""Cache folders: built once by one process, complete or absent, rebuilt if damaged."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from attnkit.errors import AttnkitError, DataError, MissingInputError, OutputPathError
from attnkit.storage.files import (
    DISK,
    atomic_write,
    json_text,
    make_folder,
    read_json,
    remove,
    remove_leftovers,
    sha256_json,
    temporary,
    writing,
)
from attnkit.storage.lock import exclusive

Value = TypeVar("Value")


def cache_dir() -> Path:
    """Return the folder for downloads and encoded corpora, which may not exist yet.

    $ATTNKIT_CACHE, otherwise $XDG_CACHE_HOME/attnkit, otherwise ~/.cache/attnkit. Raises OutputPathError without a
    home folder.
    """
    if chosen := os.environ.get("ATTNKIT_CACHE"):
        return Path(chosen)
    if (base := os.environ.get("XDG_CACHE_HOME")) and Path(base).is_absolute():
        return Path(base, "attnkit")
    try:
        return Path.home() / ".cache" / "attnkit"
    except RuntimeError as error:
        raise OutputPathError("no home folder for the cache: set ATTNKIT_CACHE") from error


def write_note(path: Path, value: Any) -> None:
    """Save a small JSON value with its SHA-256. Raises OutputPathError or OutputError if it cannot be written."""
    make_folder(path.parent)
    remove_leftovers(path.parent)
    atomic_write(path, note_text(value))


def note_text(value: Any) -> str:
    """Return the file content for `write_note`."""
    return json_text({"value": value, "sha256": sha256_json(value)})


def read_note(path: Path, form: Any) -> Any:
    """Return a value saved by `write_note` as type `form`; None if it is absent, damaged or of another type."""
    from pydantic import TypeAdapter  # 50 ms, which `--help` avoids

    with suppress(AttnkitError, ValueError):
        note = read_json(path)
        if note.get("sha256") == sha256_json(note.get("value")):
            return TypeAdapter(form).validate_json(json_text(note.get("value")), strict=True)
    return None


def read_or_build(path: Path, read: Callable[[Path], Value], build: Callable[[Path], None]) -> Value:
    """Read a complete folder with `read`; if it is absent or damaged, build it first.

    `build` writes into a temporary folder, which is then renamed, under a lock: of two processes one builds and the
    other waits and reads.

    Args:
        path: Folder named by a key of everything that its content depends on.
        read: Opens a complete folder; raises DataError if it is damaged.
        build: Fills a new, empty folder.

    Raises:
        OutputPathError: The cache folder cannot be created.
        OutputError: The disk is full or broken.
    """
    if (value := _try_read(path, read)) is not None:
        return value
    make_folder(path.parent)
    lock = path.with_name(f"{path.name}.lock")
    with exclusive(lock, file=True):  # saves double work; the rename keeps readers safe
        if (value := _try_read(path, read)) is None:
            remove_leftovers(path.parent)
            fill_folder(path, build)
            value = read(path)
        # Only after success: waiting processes then find the complete folder.
        with suppress(OSError):
            lock.unlink()
    return value


def _try_read(path: Path, read: Callable[[Path], Value]) -> Value | None:
    """Read a folder; None if it is absent or damaged."""
    with suppress(DataError, MissingInputError):
        return read(path) if path.exists() else None
    return None


def fill_folder(path: Path, build: Callable[[Path], None]) -> None:
    """Build a temporary folder beside `path` and rename it, replacing what exists; an error leaves nothing behind."""
    draft = temporary(path)
    remove_leftovers(path.parent, of=path.name)
    with writing(path):
        try:
            DISK.mkdir(draft)  # inside `try`: a signal may arrive right after it
            build(draft)
            for part in (*draft.rglob("*"), draft):  # other libraries do not sync their files
                DISK.fsync_path(part)
            if path.exists():
                remove(path)
            DISK.rename(draft, path)
        except BaseException:
            with suppress(OSError):
                remove(draft)
            raise
        DISK.fsync_path(path.parent)
