"""Folders of a cache: built once by one process, complete or absent, rebuilt when damaged."""

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
    """The folder for downloads and encoded corpora, which may not exist yet.

    $ATTNKIT_CACHE, else $XDG_CACHE_HOME/attnkit, else ~/.cache/attnkit.

    Raises OutputPathError: none of them is set and there is no home folder.
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
    """Keep a small JSON value with its SHA-256.

    Raises OutputPathError, OutputError: the cache cannot be written.
    """
    make_folder(path.parent)
    remove_leftovers(path.parent)
    atomic_write(path, note_text(value))


def note_text(value: Any) -> str:
    """The content of a note."""
    return json_text({"value": value, "sha256": sha256_json(value)})


def read_note(path: Path, form: Any) -> Any:
    """What `write_note` kept, of this type; None where there is nothing, or something else."""
    from pydantic import TypeAdapter  # 50 ms, which `--help` need not take

    with suppress(AttnkitError, ValueError):
        found = read_json(path)
        if found.get("sha256") == sha256_json(found.get("value")):
            value = json_text(found.get("value"))
            return TypeAdapter(form).validate_json(value, strict=True)
    return None


def read_or_build(path: Path, read: Callable[[Path], Value], build: Callable[[Path], None]) -> Value:
    """Read a finished folder; where it is absent or damaged, build it first.

    Args:
        path: the folder, whose name is a key of all that its content depends on.
        read: opens a finished folder and raises DataError where it is damaged.
        build: fills a new, empty folder.

    The folder gets its name by a rename after `build`, under a lock, so that of two processes
    one builds and the other waits and reads.  Returns what `read` gave.

    Raises OutputPathError: the cache folder cannot be created; OutputError: the disk is full or broken.
    """
    if (value := _whole(path, read)) is not None:
        return value
    make_folder(path.parent)
    lock = path.with_name(f"{path.name}.lock")
    with exclusive(lock, file=True):  # saves double work; the rename keeps readers safe
        if (value := _whole(path, read)) is None:
            remove_leftovers(path.parent)
            fill_folder(path, build)
            value = read(path)
        # Only after success: whoever waits finds the folder finished and builds nothing.
        with suppress(OSError):
            lock.unlink()
    return value


def _whole(path: Path, read: Callable[[Path], Value]) -> Value | None:
    """What is in a folder; None where there is none, or a damaged one."""
    with suppress(DataError, MissingInputError):
        return read(path) if path.exists() else None
    return None


def fill_folder(path: Path, build: Callable[[Path], None]) -> None:
    """Fill a folder beside `path` and give it the name; nothing is left after a fault.

    What has the name before is removed.
    """
    draft = temporary(path)
    remove_leftovers(path.parent, of=path.name)
    with writing(path):
        try:
            DISK.mkdir(draft)  # inside, since a signal may come as soon as it is there
            build(draft)
            for part in (*draft.rglob("*"), draft):  # other libraries write files unsynced
                DISK.fsync_path(part)
            if path.exists():
                remove(path)
            DISK.rename(draft, path)
        except BaseException:
            with suppress(OSError):
                remove(draft)
            raise
        DISK.fsync_path(path.parent)
