"""Processes that serve many tests: each call joins some of them as new ranks."""

import os
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

SIZE = 4
TIMEOUT = 60.0  # seconds after which a call counts as hanging
PRELOAD = ["attnkit.experiment.training", "attnkit.train.parallel", "sacrebleu", "helpers.small"]


class RankPool:
    """Connections to the processes."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections

    def run(self, world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function on each of `world` ranks; return the results, or exceptions, by rank."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        connections = self._connections[:world]
        for rank, connection in enumerate(connections):
            connection.send((rank, world, port, function, arguments))
        assert all(connection.poll(TIMEOUT) for connection in connections), "a rank hangs"
        return [connection.recv() for connection in connections]


@contextmanager
def rank_pool() -> Iterator[RankPool]:
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    pairs = [context.Pipe() for _ in range(SIZE)]
    workers = [context.Process(target=_work, args=(theirs,), daemon=True) for _, theirs in pairs]
    for worker, (_, theirs) in zip(workers, pairs, strict=True):
        worker.start()
        theirs.close()  # so that the end of a worker is noticed
    try:
        yield RankPool([ours for ours, _ in pairs])
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def _work(connection: Connection) -> None:
    import torch

    from attnkit.distributed import group

    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"}
    while True:
        rank, world, port, function, arguments = connection.recv()
        os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": f"{world}", "MASTER_PORT": f"{port}"}
        try:
            connection.send(function(*arguments))
        except BaseException as error:
            group.report(error)
            error.__notes__ = [traceback.format_exc()]  # the pipe carries notes, but no tracebacks
            connection.send(error)
        group.leave()
