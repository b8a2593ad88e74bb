"""Locks between processes on one machine; the system drops them when the process ends."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attnkit.errors import OutputPathError
from attnkit.storage import files

TRIES, WAIT = 5, 0.02
"""How often, and after how many seconds, a taken lock is tried again: it may only be looked at."""

_ours: dict[Path, int] = {}
"""Lock files that this process holds, and their descriptors."""


@contextmanager
def held(path: Path, what: str) -> Iterator[str | None]:
    """Hold a lock file, or refuse at once; the file stays and names its last holder.

    Gives None, or a warning where the file system has no locks.

    Raises:
        OutputPathError: another process holds it (the message begins with `what` and says which),
            or the file cannot be made.
    """
    warning = None
    with files.writing(path):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o666)
    try:
        try:
            _take(descriptor)
        except BlockingIOError as error:
            holder = os.read(descriptor, 200).decode("utf-8", "replace").strip()
            raise OutputPathError(
                f"{what}: is being trained by {holder or 'another process'}; wait for it to end, "
                "or choose another --out"
            ) from error
        except OSError as error:
            warning = f"{path}: no locks here ({error.strerror}): train this run only once"
        with files.writing(path):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        _ours[path.absolute()] = descriptor
        yield warning
    finally:
        _ours.pop(path.absolute(), None)
        os.close(descriptor)


def _take(descriptor: int) -> None:
    """Lock an open file; a BlockingIOError where another process keeps it."""
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not left:
                raise
            time.sleep(WAIT)


def is_lost(path: Path) -> bool:
    """Whether this process holds a lock file that is no longer under this name."""
    descriptor = _ours.get(path.absolute())
    if descriptor is None:
        return False
    try:
        return not os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return True


def is_held(path: Path) -> bool:
    """Whether a process holds this lock file now; it stays as it is."""
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


@contextmanager
def exclusive(path: Path, *, create: bool = False) -> Iterator[bool]:
    """Wait for a folder or, with `create`, a lock file and hold it.

    Gives whether it is held: False where the file system has no locks.
    """
    flags = os.O_WRONLY | os.O_CREAT if create else os.O_RDONLY
    with files.writing(path):
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        taken = False
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            taken = True
        yield taken
    finally:
        os.close(descriptor)
