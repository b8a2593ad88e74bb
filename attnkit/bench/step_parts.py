"""Where the time of a step goes: what torch's profiler saw, by part of the model and of the loop.

Layers are marked while they are measured; what is outside of them (data, loss, optimiser, search)
is marked where it is written, by `torch.profiler.record_function`.  An operation belongs to the
innermost mark around it; one of the backward pass to the mark of the operation that it derives.
"""

import os
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from attnkit.attention import Attention
from attnkit.device import clock
from attnkit.errors import OutputError
from attnkit.layers import Dropout, FeedForward, MultiHead
from attnkit.models.embedding import Embedding
from attnkit.models.fast_decoder import FastAttention, FastBlock, FastDecoder
from attnkit.models.precision import DTYPES
from attnkit.ops.onednn import product
from attnkit.storage.files import process_folder, write_output
from attnkit.train.peak_memory import peak_memory, reset_peak_memory

MARK = "attnkit: "
"""Before the names of ranges, in profiles of every program."""
LAYERS: tuple[tuple[type[nn.Module], str], ...] = (
    (Embedding, "embedding"),
    (MultiHead, "projections"),
    (Attention, "attention"),
    (FeedForward, "feed-forward"),
    (nn.LayerNorm, "normalisation"),
    (Dropout, "dropout"),
)
FAST: tuple[tuple[type, str, str], ...] = (
    (FastDecoder, "embed", "embedding"),
    (FastAttention, "project", "projections"),
    (FastAttention, "mix", "attention"),
    (FastAttention, "merge", "projections"),
    (FastBlock, "feed_forward", "feed-forward"),
)
"""Methods of the fast decoder, which calls no layers."""
REST = "rest of the model"
BACKWARD = "autograd::engine::evaluate_function: "
SIDES, REPEATS = (512, 1024, 2048), 4
"""Sides of square matrices, and how often each product is made; the fastest counts."""


class StepPart(NamedTuple):
    """Seconds of one part in an average step."""

    name: str
    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast something is computed, and where its time goes."""

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
    parts: list[StepPart]
    """Of what was profiled."""

    @property
    def operations_per_second(self) -> float:
        """Of matrix products."""
        return self.operations_per_token * self.tokens_per_second

    def record(self) -> dict[str, Any]:
        """Everything, for programs."""
        parts = [part._asdict() for part in self.parts]
        more = {"operations_per_second": self.operations_per_second, "parts": parts}
        return asdict(self) | more


def timed(work: Callable[[], object], device: str) -> tuple[float, int | None]:
    """Seconds and peak memory in bytes of some work; None where the system does not tell that."""
    watched = reset_peak_memory(device) is not None
    start = clock(device)
    work()
    seconds = clock(device) - start
    return seconds, peak_memory(device) if watched else None


def split(
    model: nn.Module, step: Callable[[], object], steps: int, device: str, trace: Path | None = None
) -> list[StepPart]:
    """Make steps under the profiler; the parts of an average one, the longest first.

    Seconds are of the device that computes: of its operations, and on a CPU also of Python between
    them.  `trace` is written in the format of Chrome's and Perfetto's viewers.

    Raises:
        OutputError: the trace cannot be written.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler talks to stderr
    cuda = device.startswith("cuda")
    marked: list[tuple[Any, str, str]] = [*FAST]
    for module in model.modules():
        name = next((name for kind, name in LAYERS if isinstance(module, kind)), None)
        if name is not None and (model.training or not isinstance(module, Dropout)):
            marked.append((module, "forward", name))
    with ExitStack() as stack:
        for owner, method, name in marked:
            ranged = record_function(MARK + name)(getattr(owner, method))
            stack.enter_context(patch.object(owner, method, ranged))
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
        profiler = stack.enter_context(profile(activities=activities))
        for _ in range(steps):
            step()
    if trace is not None:
        with TemporaryDirectory(dir=process_folder()) as folder:
            written = Path(folder) / trace.name
            profiler.export_chrome_trace(str(written))
            if not written.exists():  # torch says nothing of a disk that is full
                raise OutputError(f"{trace}: torch could not write the trace; is {folder} full?")
            write_output(trace, written.read_bytes())
    forward_part: dict[int, str] = {}  # by the number that autograd gives an operation
    seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in sorted(profiler.events() or (), key=lambda event: event.time_range.start):
        around = [event]
        while (parent := around[-1].cpu_parent) is not None:
            around.append(parent)
        marks = (one.name.removeprefix(MARK) for one in around if one.name.startswith(MARK))
        name = next(marks, REST)
        derived = next((one.sequence_nr for one in around if one.name.startswith(BACKWARD)), -1)
        if derived < 0 <= event.sequence_nr:
            forward_part[event.sequence_nr] = name
        taken = event.self_device_time_total if cuda else event.self_cpu_time_total
        seconds[forward_part.get(derived, name)][derived in forward_part] += taken / 1e6 / steps
    parts = [StepPart(name, *both) for name, both in seconds.items()]
    return sorted(parts, key=lambda part: -part.total)


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
