"""Several processes for a command on this machine, started by torchrun's own launcher."""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence

from attnkit.device import THREADS, threads_each
from attnkit.errors import PeerLostError

GRACE = 120
"""Seconds that processes which were asked to stop have to save."""


def launch(words: Sequence[str], nproc: int, *, stopped: int | None = None) -> int:
    """Run `attnkit WORDS` in so many processes; the exit code is that of rank 0.

    They share the threads.  `stopped` is the exit code of a command that a signal stops where it
    differs from that of other programs (128 + signal).

    Raises:
        PeerLostError: a process was killed; says which.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable()  # this process says itself what went wrong
    os.environ |= dict.fromkeys(THREADS, str(threads_each(nproc)))
    if sys.platform.startswith("linux"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=nproc, run_id=uuid.uuid4().hex,
        rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1", max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull), shutdown_timeout=GRACE,
        signals_to_handle="SIGTERM,SIGINT,SIGHUP",
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "attnkit", *words)
    except SignalException as error:  # the processes got it too, and rank 0 has said what it did
        return 128 + error.sigval if stopped is None else stopped
    except ChildFailedError as error:
        codes = {number: failure.exitcode for number, failure in error.failures.items()}
        if codes.get(0, 0) > 0:
            return int(codes[0])  # it has told why
        number, failure = error.get_first_failure()
        code = failure.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        raise PeerLostError(f"rank {number} {how}; run the same command again to resume") from error
    return 0
