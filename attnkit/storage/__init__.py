"""Files that are whole or absent: atomic writes, tensors, locks, caches, downloads.

Start with `files.atomic_write` (temporary file, fsync, rename), `lock.held` (one process at a
time) and `cache.read_or_build` (made once, found again). Imports `errors` of the root.
"""
