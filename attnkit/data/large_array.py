"""Arrays that may be larger than memory."""

import os
import tempfile

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnkit.storage.cache import cache_dir
from attnkit.storage.files import check_space, make_folder, writing

IN_MEMORY = 2**28
"""Bytes up to which an array is kept in memory."""
CHUNK = 2**20
"""Tokens that are made at a time."""


def large_array(count: int, dtype: DTypeLike) -> NDArray[np.unsignedinteger]:
    """An array to be filled: in memory, or mapped from a file in the cache without a name.

    Such a file is gone with the process.

    Raises:
        OutputError, OutputPathError: the disk is full, or the cache cannot be written.
    """
    size = count * np.dtype(dtype).itemsize
    if size <= IN_MEMORY:
        return np.empty(count, dtype)
    make_folder(cache_dir())
    with writing(cache_dir()), tempfile.TemporaryFile(dir=cache_dir()) as file:
        if hasattr(os, "posix_fallocate"):  # a full disk would kill who writes to the map
            os.posix_fallocate(file.fileno(), 0, size)
        else:  # macOS
            check_space(cache_dir(), size)
            file.truncate(size)
        return np.memmap(file, dtype, mode="r+", shape=(count,))
