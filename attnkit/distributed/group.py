"""The processes (ranks) of a command: all run it; the main process (rank 0) reads, prints and writes.

torchrun, srun or --nproc starts the same command in every process. A collective is a call that every rank makes, in
the same order; in a single process it does nothing. Objects are pickled, which is safe between processes of one
user's command.
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
"""Timeout for ranks that are alive but late, at the start and in sums of tensors; dead ranks are noticed at once by
the closed connection."""
OBJECT_TIMEOUT = timedelta(days=30)
"""Timeout for collectives on objects, which wait while the main process works alone, e.g. encodes a corpus."""
DETECTION = 5.0
"""Maximum number of seconds to find out which rank was lost."""
FAREWELL = 2.0
"""Number of seconds that other ranks then stay alive, so that the main process sees which rank was lost first."""
SAVING = 60.0
"""Number of seconds a rank has to save after its launcher has died."""
POLL = 0.1
LAUNCHER = "ATTNKIT_LAUNCHER"
"""Environment variable with the process id of the --nproc launcher."""
LOST = "ended or cannot be reached; run the same command again"
JOINED = "joined"
"""Key that is set in the store once all ranks have joined."""


@dataclass
class RankGroup:
    """The group of processes of this command, as seen by one rank."""

    store: Any
    """Key-value store of torch.distributed, shared by all ranks."""
    rank: int
    size: int
    object_group: Any
    """Process group of torch.distributed for objects."""
    processes: Sequence[tuple[str, int]] = ()
    """Host and process id of each rank."""


_group: RankGroup | None = None


def launched() -> bool:
    """Return whether torchrun, or a launcher that sets the same variables, started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_distributed() -> bool:
    """Return whether this process has joined a group, possibly of size 1."""
    return _group is not None


def rank() -> int:
    """Return the rank of this process."""
    return 0 if _group is None else _group.rank


def world_size() -> int:
    """Return the number of processes of this command."""
    return 1 if _group is None else _group.size


def is_main_process() -> bool:
    """Return whether this process is rank 0, which prints and writes."""
    return rank() == 0


def join(command: Sequence[str] = ()) -> None:
    """Join the group of processes; the command line `command` must be the same on all ranks, otherwise UsageError.

    Raises UnavailableError if the variables of torchrun are incomplete, or not all ranks join.
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
        dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=TIMEOUT)
        object_group = dist.new_group(backend="gloo", timeout=OBJECT_TIMEOUT)
        _group = RankGroup(store, number, count, object_group)
        ranks = all_gather_object(((socket.gethostname(), os.getpid()), list(command)))
        if number == 0:
            store.set(JOINED, "")
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).partition(". This")[0][:200]
        raise UnavailableError(
            f"the processes of this command cannot connect ({reason}): start the command with torchrun, or "
            "once with --nproc N"
        ) from error
    _group.processes = [process for process, _ in ranks]
    commands = [command for _, command in ranks]
    if other := next((n for n, command in enumerate(commands) if command != commands[0]), 0):
        raise UsageError(
            f"ranks have different commands: rank {other} was started with "
            f"{' '.join(commands[other])[:200]!r}, rank 0 with {' '.join(commands[0])[:200]!r}"
        )


def leave() -> None:
    """Leave the group and close its connections."""
    global _group
    import torch.distributed as dist

    _group = None
    if dist.is_initialized():
        dist.destroy_process_group()


def broadcast_object(value: Value | None) -> Value:
    """Return the main process's value on all ranks; the values of other ranks are ignored and may be None."""
    values: list[Any] = [value]
    if _group is not None:
        import torch
        import torch.distributed as dist

        dist.broadcast_object_list(values, group=_group.object_group, device=torch.device("cpu"))
    result: Value = values[0]
    return result


def all_gather_object(value: Value) -> list[Value]:
    """Return the values of all ranks, in the order of ranks."""
    if _group is None:
        return [value]
    import torch.distributed as dist

    values: list[Any] = [None] * _group.size
    dist.all_gather_object(values, value, group=_group.object_group)
    return values


def all_reduce_sum(values: "Tensor") -> "Tensor":
    """Sum a CPU tensor over ranks, in place, and return it."""
    if _group is not None:
        import torch.distributed as dist

        dist.all_reduce(values)
    return values


def barrier() -> None:
    """Wait until every rank has made this call."""
    all_gather_object(None)


def report(error: BaseException) -> None:
    """Store the error that ends this rank, for `lost` in the main process."""
    if _group is None or is_main_process() or isinstance(error, PeerLostError):
        return
    name, text = "AttnkitError", f"{type(error).__name__}: {error}"
    if isinstance(error, AttnkitError):
        name, text = type(error).__name__, str(error)
    with suppress(RuntimeError):
        _group.store.set(f"error/{_group.rank}", json.dumps([name, text]))


def lost(error: BaseException) -> AttnkitError | None:
    """Return the cause of a failed collective, and leave the group: the lost rank's error, or which rank is gone.

    Returns None, and stays in the group, if the error is not of a collective.
    """
    group = _group
    if group is None or not isinstance(error, RuntimeError):
        return None
    import torch.distributed as dist

    if not (isinstance(error, dist.DistError) or "gloo" in str(error).lower()):
        return None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it once another rank has ended
    leave()  # closed connections end the wait of other ranks
    cause = _cause(group)
    if group.rank:
        time.sleep(FAREWELL)
    return cause


def _cause(group: RankGroup) -> AttnkitError:
    """Wait until another rank has reported an error or its process is gone."""
    others = [number for number in range(group.size) if number != group.rank]
    deadline = time.monotonic() + DETECTION
    while time.monotonic() < deadline:
        with suppress(RuntimeError):  # the process that hosts the store may be gone
            for number in others:
                if group.store.check([f"error/{number}"]):
                    name, text = json.loads(group.store.get(f"error/{number}"))
                    return getattr(errors, name, AttnkitError)(f"rank {number}: {text}")
        if gone := [str(number) for number in others if not _alive(*group.processes[number])]:
            return PeerLostError(f"rank{'s' * (len(gone) > 1)} {', '.join(gone)} {LOST}")
        time.sleep(POLL)
    return PeerLostError(f"another rank {LOST}")


def _alive(host: str, process: int) -> bool:
    """Return whether a rank's process exists; processes on other hosts count as alive."""
    if host != socket.gethostname():
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def end_with_launcher() -> None:
    """End this process when its --nproc launcher dies, which cannot forward a SIGKILL.

    The process gets SIGTERM and `SAVING` seconds to save, or exits at once if the ranks have not joined. A thread
    polls the parent's process id, which works on every system, even if the launcher is already dead.
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
