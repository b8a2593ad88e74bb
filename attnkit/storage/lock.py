"""Locks between processes on one machine (filelock); the system drops them when a process ends."""

import errno
import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from attnkit.errors import OutputPathError
from attnkit.storage.files import reading, writing

_TRIED_FOR = 0.5
"""Seconds for which a lock is tried again that may only be looked at."""
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_ours: dict[Path, os.stat_result] = {}
"""Lock files that this process holds."""


@contextmanager
def held(path: Path, what: str) -> Iterator[str | None]:
    """Hold a lock file, or refuse at once; the file stays and names its last holder.

    Gives None, or a warning where the file system has no locks.

    Raises OutputPathError: another process holds it (the message begins with `what` and says
    which), or the file cannot be made.
    """
    from filelock import FileLock, Timeout  # 10 ms, which `--help` need not take

    # as other files: by the umask, so that a group that shares runs can hold their locks
    lock, warning = FileLock(path, mode=0o666, fallback_to_soft=False), None
    try:
        with writing(path):
            try:
                lock.acquire(timeout=_TRIED_FOR, poll_interval=_TRIED_FOR / 25)
            except Timeout as error:
                holder = path.read_text("utf-8", "replace")[:200].strip()
                raise OutputPathError(
                    f"{what}: is being trained by {holder or 'another process'}; wait for it to "
                    "end, or choose another --out"
                ) from error
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                warning = f"{path}: no locks here ({error.strerror}): train this run only once"
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
            _ours[path.absolute()] = path.stat()
        yield warning
    finally:
        if lock.is_locked:
            lock.release()
        _ours.pop(path.absolute(), None)


def is_lost(path: Path) -> bool:
    """Whether this process holds a lock file that is no longer under this name."""
    ours = _ours.get(path.absolute())
    if ours is None:
        return False
    try:
        return not os.path.samestat(ours, path.stat())
    except OSError:
        return True


def is_held(path: Path) -> bool:
    """Whether a process holds this lock file now.

    A shared lock on a file opened for reading: filelock would make it, write to it and keep others
    out for a moment.
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


class _Folders(threading.local):
    """What this thread holds: descriptor and kind of lock by path."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[int, int]] = {}


_folders = _Folders()


def exclusive(path: Path) -> AbstractContextManager[None]:
    """Wait for a folder and hold it against all others.

    Where there are no locks nothing is waited for.  Not by filelock, which has to write a file:
    whoever may read a folder can hold the folder itself, and nothing is left in it.

    Raises OutputPathError: there is no such folder (any more); nothing is made in its place.
    """
    return _hold(path, fcntl.LOCK_EX)


def exclusive_file(path: Path) -> AbstractContextManager[None]:
    """The same for a lock file, which is made.

    Raises OutputPathError: it cannot be made.
    """
    return _hold(path, fcntl.LOCK_EX, made=True)


def shared(path: Path) -> AbstractContextManager[None]:
    """The same for readers, who hold it together; nothing where there is no such folder."""
    return _hold(path, fcntl.LOCK_SH) if path.is_dir() else nullcontext()


@contextmanager
def _hold(path: Path, kind: int, made: bool = False) -> Iterator[None]:
    """Hold a folder, or a file that is made, in one of two ways; a thread that holds it goes on."""
    key = os.path.realpath(path)
    descriptor, before = _folders.held.get(key, (-1, 0))
    if descriptor >= 0:
        if kind == before or before == fcntl.LOCK_EX:
            yield
            return
    else:
        flag = os.O_CREAT if made else os.O_DIRECTORY
        with writing(path) if kind == fcntl.LOCK_EX else reading(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flag, 0o666)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, kind)
        _folders.held[key] = descriptor, kind
        yield
    finally:
        if before:
            with suppress(OSError):
                fcntl.flock(descriptor, before)
            _folders.held[key] = descriptor, before
        else:
            _folders.held.pop(key, None)
            os.close(descriptor)
