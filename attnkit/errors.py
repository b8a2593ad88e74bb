"""Errors shown to users, one class per cause, each with its exit code.

A message gives the place (file:line:column or key path), the fault, the expected value and the next step, in one line.
Any exception other than AttnkitError is a bug in attnkit.
"""

import errno


class AttnkitError(Exception):
    """Base class; `code` is the exit status of the command line."""

    code = 1


class UsageError(AttnkitError):
    """Command line with unknown or contradictory arguments."""

    code = 2


class DivergedError(AttnkitError):
    """Loss or gradient that is not finite during training."""

    code = 3


class DataError(AttnkitError):
    """Damaged or malformed data file or checkpoint."""

    code = 65


class NotFiniteError(DataError):
    """NaN or infinity in the output of a model; during training this means divergence."""


class MissingInputError(AttnkitError):
    """Requested file, corpus, run or split that does not exist."""

    code = 66


class UnavailableError(AttnkitError):
    """Device, optional package or network that is not available."""

    code = 69


class PeerLostError(UnavailableError):
    """Other process of a multi-process command that ended or cannot be reached."""


class MemoryLimitError(AttnkitError):
    """Out of memory on the machine or the device."""

    code = 71


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the machine or device is out of memory; torch reports it in several ways."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    messages: tuple[str, ...] = ()
    if isinstance(error, ImportError | OSError):  # from the dynamic loader, if a library does not fit into memory
        messages = ("Cannot allocate memory", "failed to map segment", "MemoryError")
    elif isinstance(error, RuntimeError):
        messages = ("can't allocate memory", "out of memory", "bad_alloc")
    return any(message in str(error) for message in messages)


def memory_advice(batch_tokens: int | None = None, accumulate: int = 1) -> str:
    """Return what to change after running out of memory; exact if the recipe's values are given."""
    if batch_tokens is None or batch_tokens < 2:
        return "use smaller batches: train.batch_tokens=N to train, --batch-tokens N to decode"
    return (
        f"try train.batch_tokens={batch_tokens // 2} train.accumulate={2 * accumulate} "
        "(the same updates in smaller batches)"
    )


class OutputPathError(AttnkitError):
    """Output file or folder that cannot be created."""

    code = 73


class OutputError(AttnkitError):
    """Failed write: input/output error, full disk, closed device."""

    code = 74


_WRITE_FAULTS = {errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG}


def write_failed(error: BaseException) -> bool:
    """Return whether an error means a full or broken disk."""
    return isinstance(error, OSError) and error.errno in _WRITE_FAULTS


def unreachable(error: BaseException) -> bool:
    """Return whether an error means that access to a path is denied or the path is too long."""
    faults = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}
    return isinstance(error, OSError) and bool(error.filename) and error.errno in faults


class StoppedError(AttnkitError):
    """Training stopped by a signal after its state was saved; running it again resumes."""

    code = 75


class RecipeError(AttnkitError):
    """Malformed recipe or recipe with impossible settings."""

    code = 78


def known_error(error: BaseException, batch_tokens: int | None = None, accumulate: int = 1) -> AttnkitError | None:
    """Return the AttnkitError for an error with a known cause; None: a bug. For the arguments see `memory_advice`."""
    if isinstance(error, AttnkitError):
        return error
    if out_of_memory(error):
        return MemoryLimitError(f"out of memory: {memory_advice(batch_tokens, accumulate)}")
    if isinstance(error, OSError) and write_failed(error):
        where = error.filename or "standard output"
        return OutputError(f"{where}: writing failed: {error.strerror}")
    if isinstance(error, OSError) and unreachable(error):
        return MissingInputError(f"{error.filename}: cannot be accessed: {error.strerror}")
    return None
