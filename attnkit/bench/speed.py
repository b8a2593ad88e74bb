"""Speed of computations on this machine, compared with its fastest matrix products."""

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
"""Sizes of square matrices, and repetitions of each product, of which the fastest counts."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Speed of a computation."""

    device: str
    threads: int
    seconds: float
    """Time of an average update, or of all lines."""
    tokens_per_second: float
    """Target tokens without padding, or output tokens."""
    operations_per_token: float
    """Operations of matrix products: a multiplication with its addition counts as two."""
    peaks: dict[str, float]
    """Operations per second of large matrix products on this machine, by precision."""
    peak_memory_bytes: int | None

    @property
    def operations_per_second(self) -> float:
        """Operations of matrix products per second."""
        return self.operations_per_token * self.tokens_per_second

    def record(self) -> dict[str, Any]:
        """Return all values by name, as JSON has them."""
        return asdict(self) | {"operations_per_second": self.operations_per_second}


def timed(work: Callable[[], object], device: str) -> tuple[float, int | None]:
    """Return seconds and peak memory in bytes of a call; None if the system does not report memory."""
    watched = reset_peak_memory(device) is not None
    start = clock(device)
    work()
    seconds = clock(device) - start
    return seconds, peak_memory(device) if watched else None


def write_trace(path: Path, work: Callable[[], object], device: str) -> None:
    """Profile a call and write the trace for Chrome or Perfetto. Raises OutputError if it cannot be written."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler prints to stderr
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * device.startswith("cuda")
    with profile(activities=activities) as profiler:
        work()
    with TemporaryDirectory(dir=process_folder()) as folder:
        written = Path(folder) / path.name
        profiler.export_chrome_trace(str(written))
        if not written.exists():  # torch reports no error if the disk is full
            raise OutputError(f"{path}: torch could not write the trace; is {folder} full?")
        write_output(path, written.read_bytes())


def peak(precision: str, device: str) -> float:
    """Return the operations per second (two per multiplication) of the fastest large matrix product."""
    fastest = 0.0
    with torch.no_grad():
        for side in SIDES:
            a, b = torch.randn(2, side, side, device=device).to(DTYPES[precision])
            product(a, b)
            for _ in range(REPEATS):
                start = clock(device)
                product(a, b)
                fastest = max(fastest, 2 * side**3 / (clock(device) - start))
    return fastest
