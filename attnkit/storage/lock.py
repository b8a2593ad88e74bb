"""Locks between processes on one machine (filelock); the system drops them when a process ends."""

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

    A shared lock on a file opened for reading: filelock would make it, write to it and keep others out for a moment.
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


_held = threading.local()
"""What this thread holds: the paths of `exclusive`."""


@contextmanager
def exclusive(path: Path, *, file: bool = False) -> Iterator[None]:
    """Wait for a folder, or with `file` for a lock file, which is made, and hold it against others.

    A thread that holds it goes on; where there are no locks nothing is waited for.  Not by filelock, which has to
    write a file: whoever may read a folder can hold the folder itself, and nothing is left in it.

    Raises OutputPathError: there is no such folder (any more); nothing is made in its place; or the
    file cannot be made.
    """
    key, paths = os.path.realpath(path), _held.__dict__.setdefault("paths", set())
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
