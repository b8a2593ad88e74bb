"""Opening what a user names: regular files only, with the reason where one cannot be read."""

import os
import stat
from io import BufferedReader
from pathlib import Path

from attnkit.errors import DataError, MissingInputError
from attnkit.storage.files import input_error

GZIP = b"\x1f\x8b"
"""The first bytes of a gzip file."""
KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe (data is read more than once)"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def check_file(path: Path) -> os.stat_result:
    """The file's status, if it is a regular file.

    Raises:
        MissingInputError: there is no such file, or it may not be read.
        DataError: it is a folder, a pipe or a device.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise input_error(error, path) from error
    except ValueError as error:  # a NUL in the name
        raise MissingInputError(f"{path}: cannot be the name of a file") from error
    if not stat.S_ISREG(status.st_mode):
        what = next((word for test, word in KINDS if test(status.st_mode)), "not a file")
        raise DataError(f"{path}: is {what}; a regular file is wanted")
    return status


def open_file(path: Path) -> BufferedReader:
    """A regular file, opened for reading bytes.

    Raises:
        MissingInputError, DataError: as `check_file`; also when reading is not permitted.
    """
    check_file(path)
    try:
        return path.open("rb")
    except OSError as error:
        raise input_error(error, path) from error
