"""Where models compute, with how many threads, and how those share the processor."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from attnkit.errors import UnavailableError, UsageError

INTERRUPT = {signal.SIGINT}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that torch reads when it is imported."""
SPINS = "1000"
"""How often a waiting thread of GNU OpenMP checks before it sleeps (default: 300,000).

Beside another busy program training keeps half of its speed with this, and a thirtieth with the
default; on a quiet machine it loses about 5 % (benchmarks/results/threads.md).
"""

CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}
"""How many compiled matrix products oneDNN keeps, and torch of those (default: 1,024 each).

Nearly every batch has sizes of its own, so those of an update are all that is used again.  More
also lie between the activations, so that their memory is reused badly: after 40 updates of
`translation/multi30k` training takes 0.5 GB less than by default, at the same speed.
"""


def limit_caches() -> None:
    """Let torch and oneDNN keep fewer compiled products; call it before torch is imported.

    The user's own variables win.
    """
    for name, capacity in CACHES.items():
        os.environ.setdefault(name, capacity)


def share_processor() -> None:
    """Let OpenMP's threads sleep soon when they wait; call it before torch is imported.

    The user's own OMP_WAIT_POLICY or GOMP_SPINCOUNT wins.  torch for Linux alone has GNU OpenMP.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def use_threads(threads: int) -> None:
    """Compute with so many threads on the CPU, also where torch is not imported yet."""
    os.environ |= dict.fromkeys(THREADS, str(threads))
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)


def processes() -> int:
    """Processes of one thread to compute with: OMP_NUM_THREADS where it is set, else the cores that
    this process may use."""
    chosen = os.environ.get(THREADS[0], "")
    if chosen.isdecimal():
        return max(1, int(chosen))
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def load_warning() -> str | None:
    """Why times that are measured now may be too long; None on a quiet machine."""
    if not (load := _load_of_others(0)):
        return None
    return f"this machine was busy in the last minute ({load}), so measured times may be too long"


def load_note() -> str:
    """What the machine does beside a training with all its threads; nothing on a quiet one."""
    cores = os.cpu_count() or 1
    own = os.environ.get(THREADS[0], "")
    load = _load_of_others(int(own) if own.isdecimal() else cores)
    return f"machine busy ({load})" if load else ""


def _load_of_others(own: int) -> str:
    """The load of the last minute where it is half of the cores or more beyond `own` threads."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    return f"load {load:.1f} on {cores} cores" if load - own >= cores / 2 else ""


def pick_device(name: str) -> str:
    """The device that `name` means here; auto is the first GPU, else the CPU.

    Each process that torchrun started on a machine has a GPU of its own.

    Raises:
        UsageError: it is no name of a device.
        UnavailableError: this machine has no such device, or fewer GPUs than processes.
    """
    import torch

    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name, re.ASCII):
        raise UsageError(f"--device {name}: must be auto, cpu, cuda, cuda:N or mps")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available() and "LOCAL_RANK" in os.environ:
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if processes > (gpus := torch.cuda.device_count()):
            raise UnavailableError(
                f"{processes} processes on this machine need a GPU each, {gpus} are here: start "
                f"{gpus}, or use --device cpu"
            )
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UnavailableError(f"device {name!r} is not available here: use cpu or auto") from error
    return name


def clock(device: str) -> float:
    """Seconds on a clock, read once the device has done what it was given."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device.startswith("mps"):
        torch.mps.synchronize()
    return time.perf_counter()


def threads_each(jobs: int) -> int:
    """Threads of each of so many processes: an equal share of torch's here, at least one.

    torch takes those of the machine, or OMP_NUM_THREADS.
    """
    import torch

    return max(1, torch.get_num_threads() // jobs)


@contextmanager
def starting_processes() -> Iterator[None]:
    """Inside, processes are started that do not import the main module, nor obey Ctrl-C.

    None of ours needs it; a script without `if __name__ == "__main__"` would run again in each.
    Ctrl-C, which a terminal sends to all processes, is left to this one: they inherit the blocked
    signal.
    """
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # started later, it would unblock the signal
    main, before = sys.modules["__main__"], signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPT)
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def sharing(jobs: int, ranks: int = 1) -> str:
    """How so many runs, or the ranks of one, share the machine, in words."""
    threads = threads_each(jobs * ranks)
    return (
        f"{jobs} run{'s' * (jobs != 1)} at a time{f' in {ranks} processes' * (ranks > 1)}, "
        f"{threads} thread{'s' * (threads != 1)}{' each' * (jobs * ranks > 1)}"
    )
