"""Files that are complete or absent: a crash, a kill or a full disk never leaves a partial file.

A file is written beside its final name, synced, renamed, and the rename is synced. No library does all four
(atomicwrites is no longer maintained). Every operation that changes the disk goes through a `Filesystem`, so that a
test can make the k-th one fail. Errors of the operating system become errors of `attnkit.errors`.
"""

import atexit
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedReader
from pathlib import Path
from string import digits
from typing import Any, BinaryIO, cast

from attnkit.errors import AttnkitError, DataError, MissingInputError, OutputError, OutputPathError
from attnkit.text import nearest

_PATH_ERRORS = frozenset(
    getattr(errno, f"E{name}")
    for name in (
        *("ACCES", "PERM", "ROFS", "NOENT", "NOTDIR", "ISDIR", "EXIST", "NOTEMPTY"),
        *("NAMETOOLONG", "LOOP", "INVAL", "XDEV", "BUSY"),
    )
)
"""Errors that another path avoids; all others are faults of the disk."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
JSON_LIMIT = 4 << 20
"""Maximum size of a JSON file in bytes."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe (data is read more than once)",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Lone surrogate as an escape in JSON; no file or terminal accepts the character."""
GZIP = b"\x1f\x8b"
"""First bytes of a gzip file."""


class Filesystem:
    """Operations that change the disk, one method each; all raise OSError."""

    def mkdir(self, path: Path) -> None:
        path.mkdir()

    def open(self, path: Path) -> BinaryIO:
        """Open an empty file for writing; refuse a symbolic link."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(path, flags, 0o666), "wb", buffering=1 << 20)

    def append(self, path: Path) -> BinaryIO:
        """Open a file for unbuffered writing at its end."""
        return cast(BinaryIO, open(path, "ab", buffering=0))

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]

    def truncate(self, file: BinaryIO, size: int) -> None:
        file.truncate(size)

    def fsync(self, file: BinaryIO) -> None:
        """Sync the content of a file to the disk."""
        file.flush()
        os.fsync(file.fileno())

    def fsync_path(self, path: Path) -> None:
        """Sync a file, or the names in a folder, to the disk; a no-op if this is not supported."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or folder atomically; an existing file is replaced."""
        os.replace(old, new)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def rmtree(self, path: Path) -> None:
        shutil.rmtree(path)


DISK = Filesystem()


def input_error(error: OSError, path: Path) -> AttnkitError:
    """Convert an error of reading `path` to MissingInputError or OutputError."""
    reason = error.strerror or str(error)
    if error.errno == errno.EISDIR:
        return MissingInputError(f"{path}: is a folder; a regular file is needed")
    if error.errno in _PATH_ERRORS:
        return MissingInputError(f"{path}: cannot be read: {reason}")
    return OutputError(f"{path}: reading failed: {reason}; check the disk and run again")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn every OSError inside into an OutputPathError or OutputError about `path`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _PATH_ERRORS:
            message = f"{path}: cannot be created: {reason}; choose another place"
            raise OutputPathError(message) from error
        advice = "free some space" if error.errno in _FULL else "check the disk"
        message = f"{path}: cannot be written: {reason}; {advice} and run again"
        raise OutputError(message) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn every OSError inside into the error of `input_error`."""
    try:
        yield
    except OSError as error:
        raise input_error(error, path) from error


def temporary(path: Path) -> Path:
    """Return the temporary name beside `path` for this process."""
    return path.with_name(f"{path.name}.tmp-{os.getpid()}")


def owner(path: Path) -> int | None:
    """Return the ID of the process that made a temporary name; None for any other name."""
    _, mark, process = path.name.rpartition(".tmp-")
    return int(process) if mark and process.isdecimal() and process.isascii() else None


def atomic_write(path: Path, data: bytes | str | Iterable[bytes]) -> None:
    """Write a complete file; after an error the old content, if any, is still there.

    Text is encoded as UTF-8; an iterable of bytes is written block by block.

    Raises:
        OutputPathError: The file cannot be created, or the name is that of a pipe or device.
        OutputError: The disk is full or broken.
    """
    with replacing(path) as prepared:
        write_synced(prepared, data)


def write_output(path: Path, data: bytes | str | Iterable[bytes]) -> None:
    """Write a file that the user named, as `atomic_write`; write into an existing device or pipe (/dev/stdout)."""
    with writing(path):
        if not _is_special(path):
            remove_leftovers(path.parent, of=path.name)
            atomic_write(path, data)
            return
        with DISK.append(path) as device:
            for piece in _pieces(data):
                DISK.write(device, piece)


def write_synced(path: Path, data: bytes | str | Iterable[bytes]) -> None:
    """Write a file in place and sync it; for files that no process reads yet."""
    with DISK.open(path) as file:
        for piece in _pieces(data):
            DISK.write(file, piece)
        DISK.fsync(file)


def _pieces(data: bytes | str | Iterable[bytes]) -> Iterable[bytes]:
    data = data.encode("utf-8") if isinstance(data, str) else data
    return [data] if isinstance(data, bytes) else data


def _is_special(path: Path) -> bool:
    """Return whether the path exists and is neither a file nor a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "not a file")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; the file written and synced there then replaces `path`.

    An error inside removes the temporary file.

    Raises:
        OutputPathError: `path` is a pipe or device, which stays, or cannot be created.
        OutputError: Writing or renaming failed.
    """
    prepared = temporary(path)
    with writing(path):
        if _is_special(path):
            raise OutputPathError(f"{path}: is {_kind(path.stat())}; a regular file is needed here")
        try:
            yield prepared
            DISK.rename(prepared, path)
        except BaseException:
            with suppress(OSError):
                DISK.unlink(prepared)
            raise
        DISK.fsync_path(path.parent)


def make_folder(path: Path, *, parents: bool = True) -> None:
    """Create a folder and, with `parents`, its missing parents.

    Raises OutputPathError if a parent is a file, not writable or, without `parents`, missing.
    """
    with writing(path):
        for folder in (*reversed(path.parents), path) if parents else (path,):
            if folder.exists() and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, f"{folder.name} is not a folder")
            if not folder.exists():
                with suppress(FileExistsError):
                    DISK.mkdir(folder)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its content; links are never followed."""
    if path.is_symlink() or not path.is_dir():
        DISK.unlink(path)
    else:
        DISK.rmtree(path)


def remove_leftovers(folder: Path, *, dead_only: bool = True, of: str = "") -> None:
    """Remove temporary files of interrupted writes, named *.tmp-<process>, from a folder.

    `dead_only` keeps files of other living processes of this machine; `of` selects the leftovers of one file.
    """
    with writing(folder):
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            process = owner(path) if path.name.startswith(f"{of}.tmp-" if of else "") else None
            if process is not None and not (dead_only and _alive(process)):
                remove(path)


MAX_PARENT_BYTES = 56
"""Maximum length in bytes of the parent folder's path: paths of sockets have at most 104 bytes (macOS)."""


@cache
def process_folder() -> Path:
    """Return the folder for temporary files of this process and sockets of its children.

    It is created on the first call, after removing folders of killed processes, and removed at exit.
    """
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > MAX_PARENT_BYTES:
        parent = "/tmp"
    for path in Path(parent).glob("attnkit-*.tmp-*"):
        if (process := owner(path)) is not None and not _alive(process):
            shutil.rmtree(path, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="attnkit-", suffix=f".tmp-{os.getpid()}", dir=parent))
    atexit.register(remove_process_folder)
    return folder


def remove_process_folder() -> None:
    """Remove the folder of `process_folder` if this process made it; the console script exits without `atexit`."""
    if process_folder.cache_info().currsize and owner(process_folder()) == os.getpid():
        shutil.rmtree(process_folder(), ignore_errors=True)


def _alive(process: int) -> bool:
    """Return whether another process with this ID exists."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # process of another user
        pass
    return process != os.getpid()


def check_space(folder: Path, needed: int) -> None:
    """Raise OutputError unless `needed` bytes are free on the disk of `folder`, which may not exist yet."""
    absolute = folder.absolute()
    existing = next(path for path in (absolute, *absolute.parents) if path.exists())
    with writing(folder):
        free = shutil.disk_usage(existing).free
    if free < needed:
        raise OutputError(
            f"{folder}: {needed / 1e6:,.1f} MB are needed, but only {free / 1e6:,.1f} MB are free; "
            "free some space or choose another place"
        )


def check_file(path: Path) -> os.stat_result:
    """Return the status of a regular file; a pipe or device, which could block a read, is refused.

    Raises MissingInputError if the file does not exist, cannot be accessed or is not a regular file.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, ValueError) as error:  # ValueError: NUL in the name
        raise MissingInputError(f"{path}: no such file") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise MissingInputError(f"{path}: no such file") from error
        raise input_error(error, path) from error
    if not stat.S_ISREG(status.st_mode):
        raise MissingInputError(f"{path}: is {_kind(status)}; a regular file is needed")
    return status


def require_folder(path: Path, what: str, hint: str) -> None:
    """Raise MissingInputError, with a hint and the nearest name, unless `path` is a folder; `what` describes it."""
    if not os.path.isdir(path):
        if os.path.exists(path):
            raise MissingInputError(f"{path}: is a file; a folder is needed{hint}")
        close = nearest_folder(path)
        near = f"; did you mean {close}?" if close else ""
        raise MissingInputError(f"{path}: no such {what}{hint}{near}")


def nearest_folder(path: Path) -> Path | None:
    """Return the existing folder whose path differs from `path` only in the first missing part, by a similar name.

    Returns None without a similar name; names that differ only in their numbers are not considered.
    """
    parents = [*reversed(path.parents)]
    for parent, child in zip(parents, [*parents[1:], path], strict=True):
        if os.path.lexists(child):
            continue
        with suppress(OSError, ValueError):
            names = [entry.name for entry in os.scandir(parent) if entry.is_dir()]
            others = [name for name in names if name.strip(digits) != child.name.strip(digits)]
            if close := nearest(child.name, others):
                folder = parent / close / path.relative_to(child)
                return folder if folder.is_dir() else None
        return None
    return None


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading bytes; raises as `check_file`."""
    check_file(path)
    with reading(path):
        return path.open("rb")


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. Raises as `open_file`, and OutputError if the disk fails."""
    with open_file(path) as file, reading(path):
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Return the SHA-256 of a JSON value in hexadecimal, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_json(path: Path, limit: int = JSON_LIMIT, file: BinaryIO | None = None) -> dict[str, Any]:
    """Read a file that holds one JSON object; `file` is the file if it is already open.

    Raises:
        MissingInputError: The file does not exist.
        DataError: The file is longer than `limit` bytes, or not a JSON object in UTF-8.
    """
    with file or open_file(path) as opened, reading(path):
        data = opened.read(limit + 1)
    if len(data) > limit:
        raise DataError(f"{path}: longer than {limit} bytes, so not a file of attnkit")
    return parse_object(data, str(path))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _parse_int(text: str) -> int:
    if len(text) > 19:  # attnkit writes no larger numbers, and int64 does not hold them
        raise ValueError(f"{text:.30}... is too large a number")
    return int(text)


_JSON = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_parse_int)


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """Parse one JSON object without NaN and infinities. Raises DataError, with `where` in front, for other data."""
    try:
        text = data.decode("utf-8")
        value = _JSON.decode(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: must hold a JSON object, got {type(value).__name__}")
    return value


def json_text(value: Any) -> str:
    """Return a value as indented JSON text."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
