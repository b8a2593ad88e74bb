"""Launcher of a command's processes on this machine (--nproc), with torchrun's environment variables."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attnkit.device import THREADS, threads_each
from attnkit.distributed.group import JOINED, LAUNCHER, POLL
from attnkit.errors import PeerLostError

NOTICE = 10.0
"""Number of seconds rank 0 has to notice the failure of another rank itself."""
GRACE = 120.0
"""Number of seconds processes have to save after SIGTERM."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Rank = subprocess.Popen[bytes]


def launch(arguments: Sequence[str], nproc: int) -> int:
    """Run `attnkit ARGUMENTS` in `nproc` processes, which share the threads, and return the exit code of rank 0.

    Signals are forwarded. torchrun's launcher would stop the other ranks before rank 0 can report which one was lost.

    Raises PeerLostError, with the rank, if a process was lost and rank 0 did not report it.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = dict(os.environ) | dict.fromkeys(THREADS, str(threads_each(nproc)))
    if sys.platform.startswith("linux"):
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    environment |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        LAUNCHER: str(os.getpid()),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # this process hosts the store, so it outlives every rank
    }
    ranks: list[Rank] = []
    with _record_signals() as received:
        for number in range(nproc):
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-m", "attnkit", *arguments],
                    env=environment | {"RANK": str(number), "LOCAL_RANK": str(number)},
                    stdin=None if number == 0 else subprocess.DEVNULL,
                    start_new_session=True,  # so that Ctrl-C reaches the ranks only once, through this process
                )
            )
        try:
            failed, stopped = _wait(ranks, store, received)
        finally:
            for rank in ranks:
                rank.kill()
    code = ranks[0].returncode
    if failed is None or (code > 0 and not stopped):
        return code
    if received and code < 0:
        return 128 + received[0]
    code = ranks[failed].returncode
    cause = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    raise PeerLostError(f"rank {failed} {cause}; run the same command again to resume")


def _wait(ranks: Sequence[Rank], store: Any, received: Sequence[int]) -> tuple[int | None, bool]:
    """Wait for all ranks; return the rank that failed first, and whether rank 0 had to be stopped because of it."""
    first, failed_at, forwarded, terminated, main_stopped = None, 0.0, 0, False, False
    while True:
        running = [rank for rank in ranks if rank.poll() is None]
        failed = [number for number, rank in enumerate(ranks) if rank.returncode]
        if first is None and failed:
            first, failed_at = failed[0], time.monotonic()
        if not running:
            return first, main_stopped
        for number in received[forwarded:]:
            for rank in running:
                rank.send_signal(number)
        forwarded = len(received)
        waited = 0.0 if first is None else time.monotonic() - failed_at
        if waited > (NOTICE if first else 0) and not terminated:
            terminated, main_stopped = True, ranks[0] in running
            for rank in running:
                rank.terminate()
        # ranks that have not all joined have nothing to save
        if terminated and waited > NOTICE + (GRACE if store.check([JOINED]) else 0):
            for rank in running:
                rank.kill()
        time.sleep(POLL)


@contextmanager
def _record_signals() -> Iterator[list[int]]:
    """Record signals in the yielded list instead of ending this process."""
    received: list[int] = []
    previous = {
        n: signal.signal(n, lambda number, _: received.append(number))
        for n in FORWARDED
        if signal.getsignal(n) != signal.SIG_IGN
    }
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
