"""How fast something is computed on this machine, and what its matrix products reach of the fastest ones."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from attnkit.device import clock
from attnkit.errors import OutputError
from attnkit.memory import peak_memory, reset_peak_memory
from attnkit.models.precision import DTYPES
from attnkit.ops.onednn import product
from attnkit.storage.files import process_folder, write_output

SIDES, REPEATS = (512, 1024, 2048), 4
"""Sides of square matrices, and how often each product is made; the fastest counts."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast something is computed."""

    device: str
    threads: int
    seconds: float
    """Of the whole: an average update, or all lines."""
    tokens_per_second: float
    """Real target tokens, or those of the outputs."""
    operations_per_token: float
    """Of matrix products, two a multiplication."""
    peaks: dict[str, float]
    """Operations a second of large matrix products here, by precision."""
    peak_memory_bytes: int | None

    @property
    def operations_per_second(self) -> float:
        """Of matrix products."""
        return self.operations_per_token * self.tokens_per_second

    def record(self) -> dict[str, Any]:
        """Everything, for programs."""
        return asdict(self) | {"operations_per_second": self.operations_per_second}


def timed(work: Callable[[], object], device: str) -> tuple[float, int | None]:
    """Seconds and peak memory in bytes of some work; None where the system does not tell that."""
    watched = reset_peak_memory(device) is not None
    start = clock(device)
    work()
    seconds = clock(device) - start
    return seconds, peak_memory(device) if watched else None


def write_trace(path: Path, work: Callable[[], object], device: str) -> None:
    """Do some work under torch's profiler; its trace is for Chrome's and Perfetto's viewers.

    Raises OutputError: the trace cannot be written.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler talks to stderr
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * device.startswith("cuda")
    with profile(activities=activities) as profiler:
        work()
    with TemporaryDirectory(dir=process_folder()) as folder:
        written = Path(folder) / path.name
        profiler.export_chrome_trace(str(written))
        if not written.exists():  # torch says nothing of a disk that is full
            raise OutputError(f"{path}: torch could not write the trace; is {folder} full?")
        write_output(path, written.read_bytes())


def peak(precision: str, device: str) -> float:
    """Operations a second (two for each multiplication) of the fastest large matrix product."""
    best = 0.0
    with torch.no_grad():
        for side in SIDES:
            one, two = torch.randn(2, side, side, device=device).to(DTYPES[precision])
            product(one, two)
            for _ in range(REPEATS):
                start = clock(device)
                product(one, two)
                best = max(best, 2 * side**3 / (clock(device) - start))
    return best
