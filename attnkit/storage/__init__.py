"""Files that are whole or absent: atomic writes, tensors, locks, caches, downloads."""
