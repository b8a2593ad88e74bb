"""Locks between processes on one machine (filelock); the system releases them when a process ends."""

import errno
import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attnkit.errors import OutputPathError
from attnkit.storage.files import writing

_RETRY_SECONDS = 0.5
"""Seconds for which a held lock is retried: `is_held` may hold it for a moment."""
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_held_files: dict[Path, os.stat_result] = {}
"""Lock files that this process holds."""


@contextmanager
def held(path: Path, what: str) -> Iterator[str | None]:
    """Hold a lock file or fail at once; the file stays and names its last holder.

    Yields None, or a warning if the file system has no locks.

    Raises OutputPathError if another process holds it (the message begins with `what` and names the holder), or the
    file cannot be created.
    """
    from filelock import FileLock, Timeout  # 10 ms, which `--help` avoids

    # permissions by the umask, as for other files: a group that shares runs can hold their locks
    lock, warning = FileLock(path, mode=0o666, fallback_to_soft=False), None
    try:
        with writing(path):
            try:
                lock.acquire(timeout=_RETRY_SECONDS, poll_interval=_RETRY_SECONDS / 25)
            except Timeout as error:
                holder = path.read_text("utf-8", "replace")[:200].strip()
                raise OutputPathError(
                    f"{what}: is being trained by {holder or 'another process'}; wait for it to "
                    "end, or choose another --out"
                ) from error
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                warning = f"{path}: no file locks here ({error.strerror}); do not train this run twice at once"
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
            _held_files[path.absolute()] = path.stat()
        yield warning
    finally:
        if lock.is_locked:
            lock.release()
        _held_files.pop(path.absolute(), None)


def is_lost(path: Path) -> bool:
    """Return whether a lock file that this process holds was removed or replaced."""
    status = _held_files.get(path.absolute())
    if status is None:
        return False
    try:
        return not os.path.samestat(status, path.stat())
    except OSError:
        return True


def is_held(path: Path) -> bool:
    """Return whether a process holds this lock file.

    Tries a shared lock on the file opened for reading: filelock would create it, write to it and block others.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks on this file system
        return False
    finally:
        os.close(descriptor)
    return False


_thread_local = threading.local()
"""Paths that this thread holds by `exclusive`."""


@contextmanager
def exclusive(path: Path, *, file: bool = False) -> Iterator[None]:
    """Wait for and hold an exclusive lock on a folder, or with `file` on a lock file, created if absent.

    Reentrant within a thread; without file system locks it does not wait. filelock is not used because it writes a
    file: any reader of a folder can lock the folder itself, and nothing is left in it.

    Raises OutputPathError if the folder does not exist (nothing is created) or the file cannot be created.
    """
    key, paths = os.path.realpath(path), _thread_local.__dict__.setdefault("paths", set())
    if key in paths:
        yield
        return
    with writing(path):
        flag = os.O_CREAT if file else os.O_DIRECTORY
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flag, 0o666)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        paths.add(key)
        yield
    finally:
        paths.discard(key)
        os.close(descriptor)
