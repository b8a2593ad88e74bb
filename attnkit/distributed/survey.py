"""Where the ranks of a command are, and how fast they add up numbers together."""

import os
import socket
import time
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist

from attnkit.device import pick_device
from attnkit.distributed.group import all_gather_object

SIZE = 4_000_000
"""Numbers that are added up: 16 MB in float32, some of the gradients of a small model."""
REPEATS = 5


class Place(NamedTuple):
    """One rank."""

    host: str
    process: int
    device: str
    threads: int


def survey(device: str) -> tuple[list[Place], dict[str, float]]:
    """The ranks, and the seconds of an all-reduce of `SIZE` float32 numbers by backend.

    All ranks of the command call it.

    Raises:
        UnavailableError: a rank has no such device.
    """
    mine = pick_device(device)
    place = Place(socket.gethostname(), os.getpid(), mine, torch.get_num_threads())
    backends = {"gloo": "cpu"} | ({"nccl": mine} if mine.startswith("cuda") else {})
    return all_gather_object(place), {name: _seconds(where) for name, where in backends.items()}


def _seconds(device: str) -> float:
    """The median time of an all-reduce, after one that makes the connections."""
    numbers, taken = torch.zeros(SIZE, device=device), []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        dist.all_reduce(numbers)
        numbers[0].item()  # a GPU has finished by then
        taken.append(time.perf_counter() - start)
    return median(taken[1:])
