"""What is known of a file's content, remembered so that a start need not read it again."""

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from attnkit.data.formats import count_lines
from attnkit.errors import AttnkitError
from attnkit.storage.files import atomic_write, check_file, make_folder, sha256_file

SETTLED = 100_000_000
"""Nanoseconds after which a further write surely shows in the time of the last change."""


class FileFacts(NamedTuple):
    """SHA-256 in hexadecimal, and the number of lines where it was asked for."""

    sha256: str
    lines: int | None


def facts(path: Path, cache: Path, *, lines: bool = False) -> FileFacts:
    """The content's facts, from `cache` if the file's path, size and times have not changed.

    Raises:
        MissingInputError, DataError: the file is absent, not a file, or damaged gzip data.
    """
    status = check_file(path)
    full = os.path.abspath(path)
    state: list[str | int] = [full, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    note = cache / "facts" / f"{hashlib.sha256(os.fsencode(full)).hexdigest()[:32]}.json"
    known = _recall(note, state)
    if known is not None and (known.lines is not None or not lines):
        return known
    found = FileFacts(
        known.sha256 if known else sha256_file(path), count_lines(path) if lines else None
    )
    # A file written a moment ago may change again within one tick of the clock.
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED:
        with suppress(AttnkitError):  # a cache that cannot be written costs time, nothing else
            make_folder(note.parent)
            atomic_write(note, json.dumps([state, *found]))
    return found


def _recall(note: Path, state: list[str | int]) -> FileFacts | None:
    """The facts in a note, if they are about this state of the file."""
    try:
        saved, sha256, lines = json.loads(note.read_bytes())
    except (OSError, ValueError, TypeError):
        return None
    return FileFacts(sha256, lines) if saved == state else None
