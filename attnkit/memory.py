"""Memory of a process on a CPU: what is free, and settings of the C library."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
_LARGEST = 2**31 - 1, 32 << 20  # the highest thresholds that newer and older glibc take

CGROUP, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
CGROUP_FILES = {
    "": ("memory.max", "memory.current", "memory.stat"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"),
}
"""Files with the limit, the use and the kinds of use of a control group, of both its versions."""


def keep_freed_memory() -> None:
    """Let the C library reuse freed memory rather than return it after every operation.

    Activations are freed and allocated again at each update, or step of a search; without this the
    kernel clears their pages anew every time, a tenth of the time of a small model.  Memory of the
    process then stays at its peak.
    """
    mallopt = _library("mallopt")
    if mallopt is not None and any(mallopt(_MMAP_THRESHOLD, size) for size in _LARGEST):
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def release_freed_memory() -> None:
    """Between two trainings: freed blocks of the last one fit the sizes of the next one badly.

    Without this a comparison of many variants grows by a fraction of the peak with each of them.
    """
    gc.collect()
    if (trim := _library("malloc_trim")) is not None:
        trim(0)


def settle_memory() -> None:
    """Between two trainings: what is left is taken to stay until the process ends.

    The garbage collector no longer looks through it, which takes 0.1 s each time; of what is left
    now, cycles that become garbage later are never collected.
    """
    release_freed_memory()
    gc.freeze()


def _library(name: str) -> Any:
    """A function of the C library, or None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), name, None)


def _control_groups() -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The folders of the control groups that count this process's memory, and their files."""
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in CGROUP_FILES:
            root = CGROUP / controllers
            own = root / path.lstrip("/")
            for group in (own, *own.parents):
                if group.is_relative_to(root):
                    yield group, CGROUP_FILES[controllers]


def free_memory() -> int | None:
    """Bytes that a new process could take: of the machine, and of its control groups."""
    limits = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits.append(next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable")))
    except (OSError, StopIteration):
        pass
    for group, names in _control_groups():
        try:
            limit, used, kinds = ((group / name).read_text() for name in names)
            # files that were read a while ago: the system gives their memory to whoever needs it
            cached = dict(line.split() for line in kinds.splitlines()).get("inactive_file", "0")
            limits.append(int(limit) - int(used) + int(cached))
        except (OSError, ValueError):
            continue
    return max(0, min(limits)) if limits else None
