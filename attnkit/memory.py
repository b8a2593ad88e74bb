"""Memory: what is free, the most that was used, and settings of the C library."""

import ctypes
import gc
import sys
from pathlib import Path
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
_LARGEST = 2**31 - 1, 32 << 20  # the highest thresholds that newer and older glibc take


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


def free_memory() -> int | None:
    """Bytes that a new process could take, by what Linux tells of the machine; None elsewhere."""
    return _told_by_linux("meminfo", "MemAvailable")


def process_memory(name: str) -> int | None:
    """A number of bytes from what Linux tells of this process."""
    return _told_by_linux("self/status", name)


def _told_by_linux(file: str, name: str) -> int | None:
    """A number of kilobytes of a file in /proc, in bytes."""
    try:
        lines = Path("/proc", file).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def reset_peak_memory(device: str) -> int | None:
    """Begin to watch the most memory in use, of a device, or of this process on Linux.

    The bytes in use now, or None where they cannot be known. The highest resident size that a process reports is that
    of its whole life; Linux lowers it to what is in use now on request, where this is permitted.
    """
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    if device != "cpu":
        return None
    release_freed_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak, VmHWM
    except OSError:
        return None
    return process_memory("VmRSS")


def peak_memory(device: str) -> int | None:
    """Most bytes in use since `reset_peak_memory`: tensors on a GPU, else this process's memory."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated(device)
    return process_memory("VmHWM")
