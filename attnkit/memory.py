"""Memory: free and peak amounts, and settings of the C library."""

import ctypes
import gc
import sys
from pathlib import Path
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
_MAX_THRESHOLDS = 2**31 - 1, 32 << 20  # maximum thresholds of newer and older glibc


def keep_freed_memory() -> None:
    """Let the C library reuse freed memory instead of returning it after every operation.

    Activations are freed and allocated again in every update or decoding step; otherwise the kernel clears their pages
    each time, which takes a tenth of the time of a small model. The process keeps its peak memory.
    """
    mallopt = _c_function("mallopt")
    if mallopt is not None and any(mallopt(_MMAP_THRESHOLD, size) for size in _MAX_THRESHOLDS):
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def release_freed_memory() -> None:
    """Return freed memory to the system between two trainings.

    Freed blocks of one training fit the sizes of the next one badly: otherwise a comparison of many variants grows by
    a fraction of the peak with each variant.
    """
    gc.collect()
    if (trim := _c_function("malloc_trim")) is not None:
        trim(0)


def settle_memory() -> None:
    """Exempt all objects alive between two trainings from garbage collection.

    This saves 0.1 s per collection; cycles of these objects that become garbage later are never freed.
    """
    release_freed_memory()
    gc.freeze()


def _c_function(name: str) -> Any:
    """Return a function of the C library, or None if it does not exist here."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), name, None)


def free_memory() -> int | None:
    """Return the number of bytes available to a new process according to Linux; None on other systems."""
    return _proc_size("meminfo", "MemAvailable")


def process_memory(name: str) -> int | None:
    """Return a size from /proc/self/status, such as VmRSS, in bytes; None on other systems."""
    return _proc_size("self/status", name)


def _proc_size(file: str, name: str) -> int | None:
    """Return a kilobyte entry of a file in /proc in bytes."""
    try:
        lines = Path("/proc", file).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def reset_peak_memory(device: str) -> int | None:
    """Reset the peak memory of a device, or of this process on Linux, and return the bytes in use now.

    Returns None if they cannot be measured. Linux reports the peak of a process over its whole life, but resets it on
    request if permitted.
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
    """Return the maximum bytes in use since `reset_peak_memory`: GPU tensors, otherwise memory of the process."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated(device)
    return process_memory("VmHWM")
