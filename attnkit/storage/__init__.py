"""Files that are complete or absent: atomic writes, tensors, locks, caches, downloads.

Start with `files.atomic_write` (temporary file, fsync, rename), `lock.held` (one process at a time) and
`cache.read_or_build` (built once, then read). Imports `errors` and `text` of the root.
"""
