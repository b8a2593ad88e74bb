"""Device, threads and caches for computation, and sharing of the processor."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from attnkit.errors import UnavailableError, UsageError
from attnkit.text import counted

INTERRUPT = {signal.SIGINT}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that torch reads at import."""
SPINS = "1000"
"""Number of checks of a waiting GNU OpenMP thread before it sleeps (default: 300,000).

Beside another busy program, training keeps half of its speed with this value and a thirtieth with the default; on an
idle machine it loses about 5 % (benchmarks/results/threads.md).
"""

CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}
"""Number of compiled matrix products cached by oneDNN, and of those cached by torch (default: 1,024 each).

Nearly every batch has its own sizes, so only the products of the current update are reused. More of them fragment the
memory of the activations: after 40 updates of `translation/multi30k`, training takes 0.5 GB less than with the
default, at the same speed.
"""


def limit_caches() -> None:
    """Apply `CACHES`, except variables set by the user; call before torch is imported."""
    for name, capacity in CACHES.items():
        os.environ.setdefault(name, capacity)


def share_processor() -> None:
    """Let waiting OpenMP threads sleep early; call before torch is imported.

    OMP_WAIT_POLICY or GOMP_SPINCOUNT set by the user win. Only torch for Linux uses GNU OpenMP.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def use_threads(threads: int) -> None:
    """Set the number of CPU threads, whether or not torch is imported yet."""
    os.environ |= dict.fromkeys(THREADS, str(threads))
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)


def process_count() -> int:
    """Return the number of single-threaded processes to run: OMP_NUM_THREADS if set, otherwise the usable cores."""
    threads = os.environ.get(THREADS[0], "")
    if threads.isdecimal():
        return max(1, int(threads))
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def load_warning() -> str | None:
    """Return a warning that times measured now may be too long; None on an idle machine."""
    if not (load := _load_of_others(0)):
        return None
    return f"this machine was busy in the last minute ({load}), so measured times may be too long"


def load_note() -> str:
    """Return a note on the load of other programs beside a training with all its threads, or "" if it is small."""
    cores = os.cpu_count() or 1
    threads = os.environ.get(THREADS[0], "")
    load = _load_of_others(int(threads) if threads.isdecimal() else cores)
    return f"machine busy ({load})" if load else ""


def _load_of_others(threads: int) -> str:
    """Return the load of the last minute if it exceeds `threads` by at least half of the cores, otherwise ""."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    return f"load {load:.1f} on {cores} cores" if load - threads >= cores / 2 else ""


def pick_device(name: str) -> str:
    """Return the torch device for `name`; "auto" is the first GPU, otherwise the CPU.

    Each process that torchrun starts on a machine gets its own GPU.

    Raises:
        UsageError: `name` is not a device name.
        UnavailableError: This machine has no such device, or fewer GPUs than processes.
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
                f"{processes} processes on this machine need one GPU each, but it has {gpus}: start "
                f"{gpus}, or use --device cpu"
            )
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UnavailableError(f"device {name!r} is not available here: use cpu or auto") from error
    return name


def clock(device: str) -> float:
    """Return a time in seconds, read after the device has finished its pending work."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device.startswith("mps"):
        torch.mps.synchronize()
    return time.perf_counter()


def threads_each(jobs: int) -> int:
    """Return the number of threads for each of `jobs` processes: an equal share of torch's threads, at least 1."""
    import torch

    return max(1, torch.get_num_threads() // jobs)  # OMP_NUM_THREADS, or the number of cores


@contextmanager
def starting_processes() -> Iterator[None]:
    """Start child processes in this context that ignore Ctrl-C and do not import the main module.

    No child of attnkit needs the main module, and a script without `if __name__ == "__main__"` would run again in
    each. A terminal sends Ctrl-C to all processes; children inherit the blocked signal, so only this process handles
    it.
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
    """Describe how `jobs` runs, or the `ranks` of a run, share the machine."""
    threads = threads_each(jobs * ranks)
    return (
        f"{counted(jobs, 'run')} at a time{f' in {ranks} processes' * (ranks > 1)}, "
        f"{counted(threads, 'thread')}{' each' * (jobs * ranks > 1)}"
    )
