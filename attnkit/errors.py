"""Errors that users meet, one class a cause, each with its exit code.

A message says where (file:line:column or key path), what was wrong, what would be right, and
what to do next, in one line.  Anything that is not an AttnkitError is a bug in attnkit.
"""

import errno


class AttnkitError(Exception):
    """Base class; `code` is the exit status of the command line."""

    code = 1


class UsageError(AttnkitError):
    """The command line asks for something that does not exist or does not fit together."""

    code = 2


class DivergedError(AttnkitError):
    """Training met a loss or a gradient that is not finite."""

    code = 3


class DataError(AttnkitError):
    """A data file or a checkpoint is damaged or malformed."""

    code = 65


class NotFiniteError(DataError):
    """A model returns NaN or infinity; during training this means divergence."""


class MissingInputError(AttnkitError):
    """A file, corpus, run or split that was asked for is not there."""

    code = 66


class UnavailableError(AttnkitError):
    """A device, an optional package or the network is not available."""

    code = 69


class PeerLostError(UnavailableError):
    """Another process of a command of several ended, or can no longer be reached."""


class MemoryLimitError(AttnkitError):
    """The machine or the device ran out of memory."""

    code = 71


def out_of_memory(error: BaseException) -> bool:
    """Whether the machine or the device had no memory left; torch reports that in several ways."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    messages = ("can't allocate memory", "out of memory", "bad_alloc")
    # what the loader says where a library does not fit
    loading = ("Cannot allocate memory", "failed to map segment", "MemoryError")
    named = messages if isinstance(error, RuntimeError) else ()
    named = loading if isinstance(error, ImportError | OSError) else named
    return any(words in str(error) for words in named)


def memory_advice(batch_tokens: int | None = None, accumulate: int = 1) -> str:
    """What to change after running out of memory; exact where the recipe's values are known."""
    if batch_tokens is None or batch_tokens < 2:
        return "use smaller batches: train.batch_tokens=N to train, --batch-tokens N to decode"
    return (
        f"half the batch at the same update is train.batch_tokens={batch_tokens // 2} "
        f"train.accumulate={2 * accumulate}"
    )


class OutputPathError(AttnkitError):
    """An output file or folder cannot be created."""

    code = 73


class OutputError(AttnkitError):
    """Writing failed: input/output error, disk full, closed device."""

    code = 74


_WRITE_FAULTS = {errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG}


def write_failed(error: BaseException) -> bool:
    """Whether the disk is full or broken."""
    return isinstance(error, OSError) and error.errno in _WRITE_FAULTS


def unreachable(error: BaseException) -> bool:
    """Whether a path may not be looked at, or is too long to be one."""
    faults = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}
    return isinstance(error, OSError) and bool(error.filename) and error.errno in faults


class StoppedError(AttnkitError):
    """A signal stopped training after its state was saved; running again resumes."""

    code = 75


class RecipeError(AttnkitError):
    """A recipe is malformed or asks for the impossible."""

    code = 78


def understood(error: BaseException, batch_tokens: int | None = None, accumulate: int = 1) -> AttnkitError | None:
    """What an error means to a user; None: a bug.  `memory_advice` takes the other arguments."""
    if isinstance(error, AttnkitError):
        return error
    if out_of_memory(error):
        return MemoryLimitError(f"out of memory: {memory_advice(batch_tokens, accumulate)}")
    if isinstance(error, OSError) and write_failed(error):
        where = error.filename or "standard output"
        return OutputError(f"{where}: writing failed: {error.strerror}")
    if isinstance(error, OSError) and unreachable(error):
        return MissingInputError(f"{error.filename}: cannot be reached: {error.strerror}")
    return None
