"""Measuring processes: forked from one that has imported torch and run nothing."""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from attnkit.bench.plan import Workload

START = 60.0
"""Seconds that a process may take to import, build and warm up."""
PRELOAD = ["attnkit.bench.worker", "torch.fx.experimental.symbolic_shapes"]
"""What the process that is forked has imported: the second is what autograd imports when used."""


class MeasurementTimeoutError(Exception):
    """A process was ended because its next answer did not come in time."""


class MeasuringProcess:
    """A process that measures; on a CPU a new one for each request, elsewhere one for all."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._process: Any = None
        self._connection: Connection | None = None

    def request(self, name: str, *arguments: Any, seconds: float) -> Iterator[tuple[str, Any]]:
        """The answers to one request; each may take so many seconds, the first one START more.

        A process that dies answers ("error", "memory") where the system killed it.

        Raises:
            MeasurementTimeoutError: an answer did not come in time.
        """
        if self._connection is None:
            from attnkit.bench.worker import serve

            self._connection, theirs = self._context.Pipe()
            self._process = self._context.Process(
                target=serve, args=(theirs, self.workload), daemon=True
            )
            self._process.start()
            theirs.close()
        connection = self._connection
        connection.send((name, arguments))
        patience = seconds + START
        try:
            while True:
                if not connection.poll(patience):
                    raise MeasurementTimeoutError
                try:
                    answer = connection.recv()
                except EOFError:
                    self._process.join(5)
                    code = self._process.exitcode
                    self.close()
                    # the system kills (signal 9) what takes too much memory
                    yield "error", "memory" if code == -9 else f"the process ended with code {code}"
                    return
                if answer[0] == "done":
                    break
                yield answer
                patience = seconds
        except BaseException:
            self.close()
            raise
        if self.workload.device == "cpu":
            self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None
