"""The processes (ranks) of a command: all run it, the main one (rank 0) reads, prints and writes.

torchrun, srun or --nproc starts the same command in every process.  A collective is a call that
every rank makes, in the same order; in a single process it does nothing.  Objects are pickled: the
ranks are processes of one user's command.
"""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from attnkit import errors
from attnkit.errors import AttnkitError, PeerLostError, UnavailableError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")

TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for others that are there but do not come, at the start and for sums of
tensors; dead ones are noticed at once, by the closed connection."""
LONGEST_WORK = timedelta(days=30)
"""The same for objects: what the main process does alone, such as encoding a corpus."""
NAMING = 5.0
"""Seconds in which a rank that was lost must turn out to be dead."""
FAREWELL = 2.0
"""Seconds that other ranks stay after that, so that the main process knows which one was first."""
SAVING = 60.0
"""Seconds that a rank has to save once its launcher is gone."""
POLL = 0.1
LAUNCHER = "ATTNKIT_LAUNCHER"
"""Variable with the process id of the launcher of --nproc."""
LOST = "ended or can no longer be reached; run the same command again"
JOINED = "joined"
"""Key of the store: all ranks have met."""


@dataclass
class RankGroup:
    """The processes of this command, as one of them sees it."""

    store: Any
    """Of torch.distributed: keys and values that all ranks see."""
    rank: int
    size: int
    control: Any
    """The torch.distributed group by which objects are sent."""
    places: Sequence[tuple[str, int]] = ()
    """Host and process id of each rank."""


_group: RankGroup | None = None


def launched() -> bool:
    """Whether torchrun, or what sets the same variables, started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_distributed() -> bool:
    """Whether this process is one of a group, of which it may be the only one."""
    return _group is not None


def rank() -> int:
    """The number of this process."""
    return 0 if _group is None else _group.rank


def world_size() -> int:
    """How many processes this command has."""
    return 1 if _group is None else _group.size


def is_main_process() -> bool:
    """Whether this process is the one that prints and writes."""
    return rank() == 0


def join(words: Sequence[str] = ()) -> None:
    """Meet the other processes; `words` are the command line, which must be the same everywhere.

    Raises UnavailableError: the variables of torchrun are incomplete, or the ranks do not meet; UsageError: another
    rank was started with another command line.
    """
    global _group
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    gpu = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        store, number, count = next(rendezvous("env://", timeout=TIMEOUT))
        if gpu and (local := int(os.environ.get("LOCAL_RANK", "0"))) < torch.cuda.device_count():
            torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
        how: Any = {"store": store, "rank": number, "world_size": count, "timeout": TIMEOUT}
        dist.init_process_group(backend, **how)
        control = dist.new_group(backend="gloo", timeout=LONGEST_WORK)
        _group = RankGroup(store, number, count, control)
        found = all_gather_object(((socket.gethostname(), os.getpid()), list(words)))
        if number == 0:
            store.set(JOINED, "")
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).partition(". This")[0][:200]
        raise UnavailableError(
            f"the processes of this command cannot meet ({reason}): start them with torchrun, or "
            "in one process with --nproc N"
        ) from error
    _group.places = [place for place, _ in found]
    lines = [line for _, line in found]
    if other := next((n for n, line in enumerate(lines) if line != lines[0]), 0):
        raise UsageError(
            f"ranks have different commands: rank {other} was started with "
            f"{' '.join(lines[other])[:200]!r}, rank 0 with {' '.join(lines[0])[:200]!r}"
        )


def leave() -> None:
    """No longer be one of a group; closes its connections."""
    global _group
    import torch.distributed as dist

    _group = None
    if dist.is_initialized():
        dist.destroy_process_group()


def broadcast_object(value: Value | None) -> Value:
    """The value of the main process; those of other ranks are not read, and may be None."""
    values: list[Any] = [value]
    if _group is not None:
        import torch
        import torch.distributed as dist

        dist.broadcast_object_list(values, group=_group.control, device=torch.device("cpu"))
    found: Value = values[0]
    return found


def all_gather_object(value: Value) -> list[Value]:
    """The values of all ranks, in order."""
    if _group is None:
        return [value]
    import torch.distributed as dist

    found: list[Any] = [None] * _group.size
    dist.all_gather_object(found, value, group=_group.control)
    return found


def all_reduce_sum(values: "Tensor") -> "Tensor":
    """The sum over ranks of a tensor on the CPU, in place."""
    if _group is not None:
        import torch.distributed as dist

        dist.all_reduce(values)
    return values


def barrier() -> None:
    """Wait until every rank has come here."""
    all_gather_object(None)


def report(error: BaseException) -> None:
    """Let the main process find out by `lost` what ended this rank."""
    if _group is None or is_main_process() or isinstance(error, PeerLostError):
        return
    name, text = "AttnkitError", f"{type(error).__name__}: {error}"
    if isinstance(error, AttnkitError):
        name, text = type(error).__name__, str(error)
    with suppress(RuntimeError):
        _group.store.set(f"error/{_group.rank}", json.dumps([name, text]))


def lost(error: BaseException) -> AttnkitError | None:
    """What a failed collective means: the error of the rank that ended, or which one is gone.

    None where it did not fail because of another rank.  Afterwards this process is on its own.
    """
    group = _group
    if group is None or not isinstance(error, RuntimeError):
        return None
    import torch.distributed as dist

    if not (isinstance(error, dist.DistError) or "gloo" in str(error).lower()):
        return None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by torchrun, once another rank has ended
    leave()  # those who wait for this rank notice
    found = _cause(group)
    if group.rank:
        time.sleep(FAREWELL)
    return found


def _cause(group: RankGroup) -> AttnkitError:
    """Wait for what another rank reports, or for its process to be gone."""
    others = [number for number in range(group.size) if number != group.rank]
    limit = time.monotonic() + NAMING
    while time.monotonic() < limit:
        with suppress(RuntimeError):  # the process that kept the store may be gone
            for number in others:
                if group.store.check([f"error/{number}"]):
                    name, text = json.loads(group.store.get(f"error/{number}"))
                    return getattr(errors, name, AttnkitError)(f"rank {number}: {text}")
        if gone := [str(number) for number in others if not _alive(*group.places[number])]:
            which = f"rank{'s' * (len(gone) > 1)} {', '.join(gone)}"
            return PeerLostError(f"{which} {LOST}")
        time.sleep(POLL)
    return PeerLostError(f"another rank {LOST}")


def _alive(host: str, process: int) -> bool:
    """Whether a rank's process is there, as far as this machine can tell."""
    if host != socket.gethostname():
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def end_with_launcher() -> None:
    """End this process once that of --nproc which started it is gone (SIGKILL cannot be passed on).

    It is asked to stop, as by SIGTERM, and ends at once where the ranks have not met.  A thread
    looks at the parent's id, which works on every system and for a parent that is gone already.
    """
    if LAUNCHER in os.environ:
        launcher = int(os.environ[LAUNCHER])
        threading.Thread(target=_watch, args=(launcher,), daemon=True).start()


def _watch(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(POLL)
    if is_distributed():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(SAVING)
    os._exit(128 + signal.SIGTERM)
