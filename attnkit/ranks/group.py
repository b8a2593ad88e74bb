"""The ranks of a command: rank 0 runs it, the others call the functions that it names.

torchrun (or --nproc) starts the same command in every process.  Rank 0 alone reads options and
input, decides, talks and writes; the others wait in `serve`.  A function that rank 0 names by
`together` is called by all ranks, which then move in step: `agree`, `total` and `gather` are calls
that every rank makes.  `share` deals a piece of work.  In a single process nothing here does
anything.  What ranks send each other is pickled: they are processes of one user's command.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attnkit import errors
from attnkit.errors import AttnkitError, PeerLostError, StoppedError, UnavailableError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")

TIMEOUT = timedelta(minutes=10)
"""How long a rank waits in a call for ranks that are there but do not come; dead ones are noticed
at once, by the closed connection."""
ROLL_CALL = 10.0
"""Seconds in which the ranks that are left report, after one was lost."""
FAREWELL = 2.0
"""Seconds that a failed rank stays, in which rank 0 says why; torchrun then stops the others."""
LAST_WORD = 20.0
"""Seconds that a rank which was asked to stop waits for what rank 0 says."""
POLL = 0.02


@dataclass
class RankGroup:
    """The processes of this command, as one of them sees it."""

    store: Any
    """Of torch.distributed: keys and values that all ranks see; torchrun keeps it."""
    rank: int
    size: int
    calls: int = 0
    """Functions named by rank 0 so far."""
    serving: bool = False
    """On rank 0: whether the others wait in `serve`; it then computes as a single process."""


_group: RankGroup | None = None


def _in_step() -> RankGroup | None:
    return None if _group is None or _group.serving else _group


def launched() -> bool:
    """Whether torchrun, or what sets the same variables, started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def joined() -> bool:
    """Whether this process moves in step with a group, of which it may be the only one."""
    return _in_step() is not None


def rank() -> int:
    return 0 if (group := _in_step()) is None else group.rank


def size() -> int:
    return 1 if (group := _in_step()) is None else group.size


def processes() -> int:
    """How many processes this command has, also while rank 0 computes alone."""
    return 1 if _group is None else _group.size


def leads() -> bool:
    """Whether this process is the one that talks and writes."""
    return rank() == 0


def join(words: Sequence[str] = ()) -> None:
    """Meet the other processes; `words` are the command line, which must be the same everywhere.

    Raises:
        UnavailableError: the variables of torchrun are incomplete, or the ranks do not meet.
        UsageError: another rank was started with another command line.
    """
    global _group
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    gpu = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        store, number, count = next(rendezvous("env://"))
        if gpu and (local := int(os.environ.get("LOCAL_RANK", "0"))) < torch.cuda.device_count():
            torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
        how: Any = {"store": store, "rank": number, "world_size": count, "timeout": TIMEOUT}
        dist.init_process_group(backend, **how)
        _group = RankGroup(store, number, count)
        store.set(f"process/{number}", f"{os.getpid()}@{socket.gethostname()}")
        lines = gather(list(words))
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).partition(". This")[0][:200]
        raise UnavailableError(
            f"the processes of this command cannot meet ({reason}): start them with torchrun, or "
            "in one process with --nproc N"
        ) from error
    if other := next((n for n, line in enumerate(lines) if line != lines[0]), 0):
        raise UsageError(
            f"ranks have different commands: rank {other} was started with "
            f"{' '.join(lines[other])[:200]!r}, rank 0 with {' '.join(lines[0])[:200]!r}"
        )


def lead(words: Sequence[str]) -> None:
    """Join as the rank that the others serve, or as one of these.  Raises as `join`."""
    join(words)
    assert _group is not None
    _group.serving = _group.rank == 0


def leave() -> None:
    """No longer be one of a group."""
    global _group
    import torch.distributed as dist

    _group = None
    if dist.is_initialized():
        dist.destroy_process_group()


def end(code: int) -> None:
    """Rank 0: let the others end with this exit code; where all is well, wait until they have."""
    if _group is None:
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by torchrun, once another rank has ended
    with suppress(RuntimeError):  # what kept the store may be gone
        _group.store.set("end", str(code))
        left, limit = set(range(1, _group.size)), time.monotonic() + ROLL_CALL
        while left and time.monotonic() < limit and code in (0, StoppedError.code):
            time.sleep(POLL)
            left = {n for n in left if not _told(f"left/{n}") and _alive(n)}


def gather(value: Value) -> list[Value]:
    """The values of all ranks, in order."""
    if not joined():
        return [value]
    import torch.distributed as dist

    found: list[Any] = [None] * size()
    dist.all_gather_object(found, value)
    return found


def agree(make: Callable[[], Value]) -> Value:
    """What `make` gives on rank 0, where alone it is called."""
    if not joined():
        return make()
    import torch
    import torch.distributed as dist

    values: list[Any] = [make() if leads() else None]
    dist.broadcast_object_list(values, device=torch.device("cpu"))
    return cast(Value, values[0])


def total(values: "Tensor") -> "Tensor":
    """The sum over ranks of a tensor on the CPU, in place."""
    if joined():
        import torch.distributed as dist

        dist.all_reduce(values)
    return values


@contextmanager
def together(function: Callable[..., object], *arguments: Any) -> Iterator[None]:
    """Rank 0: inside the block the other ranks call function(*arguments), all in step."""
    if _group is None or not _group.serving:
        yield
        return
    group = _group
    group.store.set(f"call/{group.calls}", "")
    group.calls, group.serving = group.calls + 1, False
    try:
        with name_lost_ranks():
            agree(lambda: (function, arguments))
        yield
    finally:
        group.serving = True


def share(function: Callable[..., Value], model: Any, *arguments: Any) -> list[Value]:
    """What function(model, *arguments, rank, size) gives on each rank, in order.

    Where rank 0 alone computes, the others open the model by `model.reopen`; one that cannot be
    opened again is used by rank 0 alone.

    Raises:
        PeerLostError, AttnkitError: another rank ended.
    """
    reopen = getattr(model, "reopen", None)
    if _group is None or (_group.serving and reopen is None):
        return [function(model, *arguments, 0, 1)]
    with together(_take_part, function, reopen, arguments), name_lost_ranks():
        return gather(function(model, *arguments, rank(), size()))


_opened: dict[Any, Any] = {}


def _take_part(function: Callable[..., Any], reopen: Any, arguments: Sequence[Any]) -> None:
    """The other ranks' side of `share`; the last model stays open."""
    key = (reopen.func, reopen.args)
    if key not in _opened:
        _opened.clear()
        _opened[key] = reopen()
    gather(function(_opened[key], *arguments, rank(), size()))


def _nothing() -> tuple[Callable[..., object], Sequence[Any]]:
    """What ranks other than 0 bring to a call that rank 0 names."""
    raise AssertionError


def serve() -> int:
    """Ranks other than 0: call what rank 0 names, until it ends; its exit code.

    Raises:
        AttnkitError, ...: what a function raised; rank 0 finds it by `lost`.
    """
    asked: list[float] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: asked.append(time.monotonic()))
    assert _group is not None
    group = _group
    try:
        while True:
            while not _told(f"call/{group.calls}"):
                if _told("end"):
                    group.store.set(f"left/{group.rank}", "")
                    return int(group.store.get("end"))
                if not _alive(0) and not _told("end"):
                    raise PeerLostError("rank 0 ended")
                if asked and time.monotonic() > asked[0] + LAST_WORD:
                    return 128 + signal.SIGTERM
                time.sleep(POLL)
            group.calls += 1
            function, arguments = agree(_nothing)
            with suppress(StoppedError):  # all ranks stop, and rank 0 says so
                function(*arguments)
    except BaseException as error:
        tell(error)
        leave()
        limit = time.monotonic() + FAREWELL
        with suppress(RuntimeError):
            while time.monotonic() < limit and not _told("end", group) and _alive(0, group):
                time.sleep(POLL)
        raise


def tell(error: BaseException) -> None:
    """Let the others find out by `lost` what ended this rank."""
    if _group is None or isinstance(error, PeerLostError):
        return
    name, text = "AttnkitError", f"{type(error).__name__}: {error}"
    if isinstance(error, AttnkitError):
        name, text = type(error).__name__, str(error)
    with suppress(RuntimeError):
        _group.store.set(f"error/{_group.rank}", json.dumps([name, text]))


@contextmanager
def name_lost_ranks() -> Iterator[None]:
    """Raise what `lost` finds in place of the error of a call that another rank did not answer."""
    try:
        yield
    except RuntimeError as error:
        if found := lost(error):
            raise found from error
        raise


def lost(error: RuntimeError) -> AttnkitError | None:
    """What a failed call among ranks means: the error of the rank that ended, or which are gone.

    None where it did not fail because of another rank.  Afterwards this process is on its own.
    """
    import torch.distributed as dist

    group, text = _group, str(error)
    if group is None or not (isinstance(error, dist.DistError) or "gloo" in text.lower()):
        return None
    leave()  # closes the connections, so that those notice who wait for this rank
    try:
        return _roll_call(group)
    except RuntimeError:
        return PeerLostError("the other ranks can no longer be reached")


def _roll_call(group: RankGroup) -> AttnkitError:
    """Who is left, and why the others are not."""
    group.store.set(f"here/{group.rank}", "")
    start = time.monotonic()
    while True:
        for number in range(group.size):
            if _told(f"error/{number}", group):
                name, text = json.loads(group.store.get(f"error/{number}"))
                return getattr(errors, name, AttnkitError)(f"rank {number}: {text}")
        missing = [n for n in range(group.size) if not _told(f"here/{n}", group)]
        living = [number for number in missing if _alive(number, group)]
        # those who wait for this rank may notice only when it is gone, too
        patience = ROLL_CALL if living == missing else 1.0
        if not living or time.monotonic() > start + patience:
            break
        time.sleep(POLL)
    gone = [number for number in missing if number not in living] or living
    which = f"rank{'s' * (len(gone) > 1)} {', '.join(map(str, gone))}"
    how = "ended or can no longer be reached" if gone != living else "does not answer"
    found = PeerLostError(f"{which} {how}")
    found.first_left = group.rank == min(set(range(group.size)) - set(missing))
    return found


def _told(key: str, group: RankGroup | None = None) -> bool:
    group = group or _group
    return group is not None and bool(group.store.check([key]))


def _alive(number: int, group: RankGroup | None = None) -> bool:
    """Whether a rank's process is there, as far as this machine can tell."""
    group = group or _group
    assert group is not None
    process, _, host = group.store.get(f"process/{number}").decode().partition("@")
    if host != socket.gethostname():
        return True
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    return True
