"""Memory of a training process on a CPU."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
_LARGEST = 32 << 20  # the highest threshold that glibc takes


def keep_freed_memory() -> bool:
    """Let the C library reuse freed memory rather than return it after every operation.

    Activations are freed and allocated again at each update; without this the kernel clears their
    pages anew every time, a tenth of the time of a small model.  Memory of the process then stays
    at its peak.  Returns whether the library took the setting (glibc only).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))
